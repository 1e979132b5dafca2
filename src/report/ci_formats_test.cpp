// What CI shows: JUnit, Markdown, SARIF, GitHub's annotations. That other programs accept the files
// is seen in tests/report_files, with their own parsers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/folder_test.h"
#include "model/findings.h"
#include "report/durations.h"
#include "report/github.h"
#include "report/junit.h"
#include "report/markdown.h"
#include "report/sample_cases.h"
#include "report/sarif.h"
#include "report/source_place.h"
#include "report/summary.h"
#include "report/worst_first.h"

namespace distgrad {
namespace {

using sample::disputed;
using sample::report_of;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

const FormatContext kContext{.text = {}, .host = "here", .root = "/src"};

CaseResult expected_mismatch() {
  CaseResult r = sample::in_place_mismatch("known.json");
  r.which.expected.verdict = Verdict::kMismatch;
  r.as_expected = true;
  return r;
}

// An expected failure that passes.
CaseResult mended() {
  CaseResult r = sample::match("mended.json");
  r.which.expected.verdict = Verdict::kMismatch;
  r.which.expected.finding = "tie";
  r.as_expected = false;
  r.why = "expected mismatch, got match";
  return r;
}

Report mixed_report() {
  Report report = report_of({sample::match("a.json"), expected_mismatch(),
                             sample::in_place_mismatch(), mended(), sample::hang("h.json", ""),
                             sample::skipped("s.json", ":backend=nccl", "no GPU"), disputed()});
  report.invalid = {{"bad.json", {3, 5}, "/steps/0", "unknown key \"x\"", "x\n^"}};
  return report;
}

// A scenario of which the lines are known.
CaseResult placed(const char* step, const char* file = "/src/deep/p.json") {
  static std::map<std::string, Scenario> all;
  Scenario& s = all[file];
  s.file = file;
  s.name = "p";
  s.steps = {{"xx", "/steps/0", Expression{}}, {"y", "/steps/1", Expression{}}};
  s.positions = {{"/steps/0", {4, 5}},
                 {"/steps/1", {5, 5}},
                 {"/steps/1/y", {6, 9}},
                 {"/subjects/in_place", {11, 3}}};
  CaseResult r = sample::in_place_mismatch(file);
  r.which.scenario = &s;
  r.findings[0].step = step;
  return r;
}

// --- Which come first ---

TEST(WorstFirst, BrokenThenTheLargestErrorThenTheRest) {
  CaseResult small = sample::in_place_mismatch("small.json");
  small.gradients[0].max_abs_error = 6;    // of 60
  small.gradients[0].max_rel_error = 1e9;  // of an element that is nearly zero
  CaseResult nan = sample::in_place_mismatch("nan.json");
  nan.gradients[0].max_rel_error = NAN;
  CaseResult equal = sample::in_place_mismatch("equal.json");  // a wrong one besides a right one
  equal.gradients[0].max_abs_error = 12;
  equal.gradients.push_back(equal.gradients[0]);
  equal.gradients[1].equal = true;
  equal.gradients[1].max_abs_error = 1e9;
  const Report report =
      report_of({sample::match("a.json"), mended(), small, sample::in_place_mismatch("half.json"),
                 equal, nan, sample::hang("h.json", ""), disputed(), expected_mismatch()});
  std::vector<std::string> files;
  for (const CaseResult* r : worst_first(report)) files.push_back(r->which.scenario->file);
  EXPECT_THAT(files, testing::ElementsAre("h.json", "nan.json", "half.json", "equal.json",
                                          "small.json", "mended.json"));
}

// --- JUnit ---

TEST(JUnit, CountsEachCaseWhereItBelongs) {
  const std::string text = junit_text(mixed_report(), kContext);
  EXPECT_THAT(text, HasSubstr("<testsuites name=\"distgrad\" tests=\"8\" failures=\"2\" "
                              "errors=\"2\" time=\"0.400\">"));
  EXPECT_THAT(text, HasSubstr("<testsuite name=\"h.json\" tests=\"1\" failures=\"0\" errors=\"1\" "
                              "skipped=\"0\" time=\"0.004\" hostname=\"here\">"));
  EXPECT_THAT(text, HasSubstr("<testcase name=\"a\" classname=\"a\" time=\"0.004\" />"));
  EXPECT_THAT(text, HasSubstr("<skipped message=\"no GPU\" />"));
  EXPECT_THAT(text, HasSubstr("<skipped message=\"disputed: undecided"));
  EXPECT_THAT(text, HasSubstr("<error type=\"hang\" message=\"error: hang on rank 1 in step y: "));
  EXPECT_THAT(text, HasSubstr("<failure type=\"identity-backward\" message=\"mismatch: "));
  EXPECT_THAT(text, HasSubstr("message=\"match, though the file expects mismatch: tie\""));
  EXPECT_THAT(text, HasSubstr("<testcase name=\"valid scenario:3:5 /steps/0\" classname=\"bad\""));
  EXPECT_THAT(text, HasSubstr("<error type=\"invalid-scenario\" "));
}

TEST(JUnit, AFailuresTextIsTheTextReport) {
  const CaseResult r = sample::in_place_mismatch();
  const std::string text = junit_text(report_of({r}), kContext);
  EXPECT_THAT(text, HasSubstr(case_text(r, {})));
  EXPECT_THAT(text,
              HasSubstr("Again: distgrad run 'mine/all_reduce_sum.json:subject=in_place'\n<"));
}

TEST(JUnit, SaysOfAWrongCaseWhereTheStepGoesWrong) {
  Report report = report_of({sample::match("a.json"), sample::in_place_mismatch("b.json")});
  report.where = {"Backward departs at norm.", "That is in x.py:3."};
  const std::string text = junit_text(report, kContext);
  const std::string where = "Where:\n- Backward departs at norm.\n- That is in x.py:3.\n</failure>";
  EXPECT_THAT(text, HasSubstr(where));
  EXPECT_EQ(text.find("Where:"), text.rfind("Where:"));
}

TEST(JUnit, AnExpectedMismatchPasses) {
  const std::string text = junit_text(report_of({expected_mismatch()}), kContext);
  EXPECT_THAT(text, HasSubstr("failures=\"0\" errors=\"0\""));
  EXPECT_THAT(text, Not(HasSubstr("<failure")));
  EXPECT_THAT(text, HasSubstr("<system-out>ok    known.json"));
}

TEST(JUnit, EscapesWhatMarkupIsMadeOf) {
  CaseResult r = sample::hang("h.json", "");
  r.error->message = "a < b && \"c\" ]]> \x1b[31m\x01 \xFF\nsecond line";
  const std::string text = junit_text(report_of({r}), kContext);
  EXPECT_THAT(text, HasSubstr("a &lt; b &amp;&amp; &quot;c&quot; ]]"));
  EXPECT_THAT(text, HasSubstr("a &lt; b &amp;&amp; \"c\" ]]&gt; "));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\x01'), std::string::npos);
  EXPECT_EQ(text.find('\xFF'), std::string::npos);
}

TEST(JUnit, ARunThatBrokeOffIsNotGreen) {
  FormatContext context = kContext;
  context.ended_early = "interrupted; 1 of 9 cases were finished";
  context.broken_off = true;
  const Report report = report_of({sample::match("a.json")});
  EXPECT_THAT(junit_text(report, context), HasSubstr("failures=\"0\" errors=\"1\""));
  EXPECT_THAT(junit_text(report, kContext), HasSubstr("failures=\"0\" errors=\"0\""));
}

TEST(JUnit, TheCasesOfAFileAreOneSuite) {
  const std::string text =
      junit_text(report_of({sample::match("a.json", ":world_size=2"), sample::match("b.json"),
                            sample::match("a.json", ":world_size=3")}),
                 kContext);
  EXPECT_THAT(text, HasSubstr("<testsuite name=\"a.json\" tests=\"2\""));
  EXPECT_THAT(text, HasSubstr("name=\"a:world_size=3\""));
}

// --- Markdown ---

TEST(Markdown, BeginsWithATableByFinding) {
  CaseResult other = sample::in_place_mismatch("b.json");
  other.findings[0].rule = "scaled";
  const std::string text = markdown_report(
      report_of({sample::in_place_mismatch("a.json"), other, sample::in_place_mismatch("c.json")}),
      kContext);
  const std::size_t table = text.find("| finding | cases |"),
                    first = text.find("| identity-backward (all\\_reduce) | 2 |"),
                    second = text.find("| scaled (all\\_reduce) | 1 |"),
                    counts = text.find("| as expected |");
  EXPECT_TRUE(table < first && first < second && second < counts && counts != text.npos)
      << text.substr(0, 1500);
}

TEST(Markdown, CountsAndShowsTheWorstFirst) {
  const std::string text = markdown_report(mixed_report(), kContext);
  EXPECT_THAT(text, testing::StartsWith("## distgrad: 1 broken, 2 not as expected, 1 problem in "
                                        "files or subjects, of 7 cases\n"));
  EXPECT_THAT(text, HasSubstr("| 2 | 2 | 1 | 1 | 1 | "));
  EXPECT_LT(text.find("<code>h.json"), text.find("<code>mine/all_reduce_sum.json"));
  EXPECT_LT(text.find("<code>mine/all_reduce_sum.json"), text.find("<code>mended.json"));
  EXPECT_THAT(text, HasSubstr("- 1 case: no GPU\n"));
  EXPECT_THAT(text, HasSubstr("- bad.json:3:5: /steps/0: unknown key"));
  EXPECT_THAT(text, Not(HasSubstr("known.json")));
  EXPECT_THAT(text, Not(HasSubstr("left out")));
}

TEST(Markdown, SaysWhenNothingIsWrongAndWhenNothingRan) {
  EXPECT_THAT(markdown_report(report_of({sample::match("a.json")}), kContext),
              testing::StartsWith("## distgrad: 1 case, all as expected\n"));
  EXPECT_THAT(markdown_report(report_of({sample::skipped("s.json", "", "no GPU")}), kContext),
              testing::StartsWith("## distgrad: nothing ran\n"));
  FormatContext context = kContext;
  context.ended_early = "interrupted; 1 of 9 cases were finished";
  context.broken_off = true;
  const std::string text = markdown_report(report_of({sample::match("a.json")}), context);
  EXPECT_THAT(text, testing::StartsWith("## distgrad: broken off, of 1 case\n"));
  EXPECT_THAT(text, HasSubstr("**Not complete**: interrupted; 1 of 9"));
}

TEST(Markdown, TenThousandFailuresFitAndWhatDoesNotIsCounted) {
  std::vector<CaseResult> cases;
  for (int i = 0; i < 10'000; ++i) {
    CaseResult r = sample::in_place_mismatch("many.json");
    r.which.id =
        fmt::format("many.json:subject=in_place,world_size={},{}", i, std::string(i % 97, 'x'));
    r.gradients[0].max_abs_error = i;
    r.output = {std::string(20'000, '`')};
    cases.push_back(std::move(r));
  }
  const std::string text = markdown_report(report_of(std::move(cases)), kContext);
  EXPECT_LT(text.size(), std::size_t{1} << 20);
  EXPECT_GT(text.size(), 900'000u);  // the room is used
  // The worst is the last of them and comes first.
  EXPECT_LT(text.find("world_size=9999,"), text.find("world_size=9998,"));
  // Cases shown in full and by a row, and those left out, are all of them.
  int full = 0, rows = 0, left_out = 0, all = 0;
  const std::size_t at = text.find("The first ");
  ASSERT_NE(at, std::string::npos) << text.substr(text.size() - 2000);
  ASSERT_EQ(std::sscanf(text.c_str() + at,
                        "The first %d are shown in full, %d by a line each.\n**%d of the %d", &full,
                        &rows, &left_out, &all),
            4);
  EXPECT_EQ(all, 10'000);
  EXPECT_EQ(full + rows + left_out, all);
  std::size_t found = 0;
  for (std::size_t p = 0; (p = text.find("\n| `many.json", p)) != std::string::npos; ++p) ++found;
  EXPECT_EQ(found, static_cast<std::size_t>(rows));
}

TEST(Markdown, NothingThatIsToldBecomesMarkup) {
  CaseResult r = sample::hang("h.json", "");
  r.error->message = "<b>*bold*</b> | `x` ```\n# heading\x1b";
  std::vector<CaseResult> cases(30, r);
  const std::string text = markdown_report(report_of(std::move(cases)), kContext);
  EXPECT_THAT(text, HasSubstr("&lt;b&gt;*bold*"));                        // a summary is HTML
  EXPECT_THAT(text, HasSubstr("\\<b\\>\\*bold\\*\\</b\\> \\| \\`x\\`"));  // a cell is Markdown
  EXPECT_THAT(text, HasSubstr("````text\n"));  // a fence that the text's own cannot close
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

// --- SARIF ---

using Json = nlohmann::ordered_json;

TEST(Sarif, HasARuleWithHelpForEveryFinding) {
  const Json report = sarif_report(mixed_report(), kContext);
  const Json& rules = report["runs"][0]["tool"]["driver"]["rules"];
  EXPECT_EQ(rules.size(), kFindings.size() + 3);
  for (std::size_t i = 0; i < kFindings.size(); ++i) {
    EXPECT_EQ(rules[i]["id"], kFindings[i].name);
    EXPECT_EQ(rules[i]["help"]["text"], kFindings[i].help);
    EXPECT_GT(rules[i]["help"]["text"].get<std::string>().size(), 40u);
  }
}

TEST(Sarif, ResultsAreWhatIsWrongAndNothingElse) {
  const Json report = sarif_report(mixed_report(), kContext);
  const Json& run = report["runs"][0];
  std::vector<std::string> rules;
  for (const Json& result : run["results"]) {
    rules.push_back(result["ruleId"]);
    EXPECT_EQ(run["tool"]["driver"]["rules"][result["ruleIndex"].get<int>()]["id"], rules.back());
  }
  EXPECT_THAT(rules, testing::ElementsAre("rank-error", "identity-backward", "not-as-expected",
                                          "invalid-scenario"));
  EXPECT_EQ(run["invocations"][0]["executionSuccessful"], true);
  EXPECT_EQ(run["invocations"][0]["toolExecutionNotifications"].size(), 2u);  // skipped, disputed
}

TEST(Sarif, PointsAtTheStepBelowTheRepository) {
  const Json where =
      sarif_report(report_of({placed("y")}),
                   kContext)["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
  EXPECT_EQ(where["region"]["startLine"], 6);
  EXPECT_EQ(where["artifactLocation"]["uri"], "deep/p.json");
  const Json outside = sarif_report(report_of({placed("y", "/else where/p.json")}), kContext);
  EXPECT_EQ(
      outside["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"],
      Json({{"uri", "file:///else%20where/p.json"}}));
}

TEST(Sarif, PointsAtTheLineThatAStepIsDefinedIn) {
  const Scenario step = scenario_at("/src/my models/train.py:12", "ranks");
  CaseResult r = sample::in_place_mismatch();
  r.which.scenario = &step;
  r.which.id = step.file + ":w";
  Report report = report_of({r});
  report.where = {"Backward departs at norm."};
  FormatContext context = kContext;
  context.root = "/src";
  const auto result = sarif_report(report, context)["runs"][0]["results"][0];
  const auto place = result["locations"][0]["physicalLocation"];
  EXPECT_EQ(place["artifactLocation"]["uri"], "my%20models/train.py");
  EXPECT_EQ(place["region"]["startLine"], 12);
  EXPECT_THAT(result["message"]["text"].get<std::string>(),
              EndsWith("\nWhere:\n- Backward departs at norm.\n"));
  EXPECT_EQ(scenario_at("", "ranks").file, "ranks");
}

TEST(Sarif, AFingerprintIsOfTheCaseAndNotOfItsPlaceOrFigures) {
  const auto print = [](const CaseResult& r, const char* root) {
    FormatContext context = kContext;
    context.root = root;
    return sarif_report(report_of({r}), context)["runs"][0]["results"][0]["partialFingerprints"];
  };
  const CaseResult first = placed("y");
  CaseResult moved = first;
  moved.findings[0].step = "xx";  // another line
  moved.gradients[0].max_abs_error = 7;
  moved.findings[0].text = "reworded";
  EXPECT_EQ(print(first, "/src"), print(moved, "/src"));
  // The checkout lies elsewhere on another machine.
  EXPECT_EQ(print(first, "/src"), print(placed("y", "/home/ci/deep/p.json"), "/home/ci"));
  CaseResult other = first;
  other.which.id += ",world_size=3";
  EXPECT_NE(print(first, "/src"), print(other, "/src"));
  CaseResult another = first;
  another.findings[0].rule = "scaled";
  EXPECT_NE(print(first, "/src"), print(another, "/src"));
  // FNV-1a of "deep/p.json:subject=in_place\nidentity-backward": what alerts are known by must
  // never change.
  EXPECT_EQ(print(first, "/src")["distgradCase/v1"], "ee2f76f66e007ad0");
}

TEST(Sarif, MessagesHoldNoPlaceholdersAndNoLinks) {
  CaseResult r = placed("y");
  r.findings[0].text = "see [x](1) and {0}";
  const Json result = sarif_report(report_of({r}), kContext)["runs"][0]["results"][0];
  EXPECT_THAT(result["message"]["text"].get<std::string>(), HasSubstr("[x] (1) and {{0}}"));
}

// --- GitHub ---

TEST(GitHub, AnnotatesTheStepsLine) {
  const std::string text = github_annotations(report_of({placed("y")}), kContext);
  EXPECT_THAT(text, testing::StartsWith(
                        "::error file=deep/p.json,line=6,title=mismatch%3A identity-"
                        "backward in step y (all_reduce)::The gradients are 1/2 of the truth"));
  EXPECT_THAT(text, HasSubstr("%0AFAIL  /src/deep/p.json"));
  EXPECT_THAT(text, HasSubstr("%0A  x            rank 0   rank 1%0A"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

using PlaceInCode = FolderTest;

TEST_F(PlaceInCode, IsTheLineOfTheBackward) {
  const std::string file = folder_ / "losses.py";
  write("losses.py",
        "import torch\n"
        "\n"
        "def GatherLayerOld(x): pass\n"
        "class Other:\n"
        "    def backward(ctx, g): pass\n"
        "class GatherLayer(torch.autograd.Function):\n"
        "    # a comment\n"
        "    @staticmethod\n"
        "    def forward(ctx, x): return x\n"
        "\n"
        "    @staticmethod\n"
        "    def backward(ctx, g): return g\n"
        "\n"
        "def reduced(x): return x\n");
  const auto line = [&](const std::string& subject, const std::string& collective) {
    CaseResult r = placed("y");
    r.which.subject = subject;
    r.findings[0].collective = collective;
    const SourcePlace place = place_of_case(r);
    return std::pair(place.file == file, place.line);
  };
  EXPECT_EQ(line("python:" + file + ":GatherLayer.apply", "all_gather"), std::pair(true, 12));
  EXPECT_EQ(line("all_gather=python:" + file + ":GatherLayer@checkpoint+all_reduce=in_place",
                 "all_gather"),
            std::pair(true, 12));
  EXPECT_EQ(line("python:" + file + ":reduced", "all_reduce"), std::pair(true, 14));
  EXPECT_EQ(line("all_gather=python:" + file + ":GatherLayer+all_reduce=in_place", "all_reduce"),
            std::pair(false, 6));
  EXPECT_EQ(line("python:" + file + ":GatherLayer", ""),
            std::pair(false, 6));  // no call is to blame
  EXPECT_EQ(line("python:" + file + ":absent", "all_gather"), std::pair(false, 6));
  EXPECT_EQ(line("python:/no/such/file.py:f", "all_gather"), std::pair(false, 6));
}

TEST(GitHub, WithoutAStepTheSubjectsLineIsIt) {
  EXPECT_THAT(github_annotations(report_of({placed("")}), kContext), HasSubstr(",line=11,"));
  EXPECT_THAT(github_annotations(report_of({placed("xx")}), kContext), HasSubstr(",line=4,"));
}

TEST(GitHub, TenAtMostAndTheWorst) {
  std::vector<CaseResult> cases(20, sample::in_place_mismatch());
  cases.push_back(sample::hang("h.json", ""));
  Report report = report_of(std::move(cases));
  report.invalid = {{"bad.json", {3, 5}, "/steps/0", "100% wrong", ""}};
  const std::string text = github_annotations(report, kContext);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10);
  EXPECT_THAT(text, testing::StartsWith("::error file="));
  EXPECT_LT(text.find("h.json"), text.find("bad.json"));
  EXPECT_LT(text.find("bad.json"), text.find("all_reduce_sum.json"));
  EXPECT_THAT(text, HasSubstr("100%25 wrong"));
  EXPECT_THAT(text,
              testing::EndsWith("%0A12 more are not shown as annotations: see the job's log.\n"));
}

TEST(GitHub, ANameIsNoCommandOfAzures) {
  Report report = report_of({});
  report.invalid = {{"a\n##vso[task.complete].json", {}, "", "##[error] is no name", ""}};
  const std::string text = github_annotations(report, kContext);
  EXPECT_THAT(text, testing::AllOf(Not(HasSubstr("##")), HasSubstr("\\u0023#vso["),
                                   HasSubstr("\\u0023#[error]")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(GitHub, SaysNothingWhereAllIsWell) {
  EXPECT_EQ(github_annotations(
                report_of({sample::match("a.json"), expected_mismatch(), disputed()}), kContext),
            "");
}

// --- A subject that cannot be loaded ---

TEST(CiFormats, AnUnusableSubjectIsAnErrorAtNoFile) {
  Report report = report_of({});
  report.invalid = {{"python:mine.py:f", {}, "", "no module named mine", ""}};
  EXPECT_THAT(junit_text(report, kContext), HasSubstr("name=\"can be used\""));
  EXPECT_THAT(
      github_annotations(report, kContext),
      testing::StartsWith("::error title=python%3Amine.py%3Af cannot be used::python:mine"));
  const Json run = sarif_report(report, kContext)["runs"][0];
  EXPECT_EQ(run["results"].size(), 0u);
  EXPECT_EQ(run["invocations"][0]["toolConfigurationNotifications"].size(), 1u);
}

// --- Durations ---

TEST(Durations, TheSlowestFirst) {
  CaseResult slow = sample::match("slow.json");
  slow.elapsed_s = 2;
  CaseResult slower = sample::match("slower.json");
  slower.elapsed_s = 75;
  CaseResult skipped = sample::skipped("s.json", "", "no GPU");
  skipped.elapsed_s = 0;
  const Report report = report_of({slow, sample::match("a.json"), slower, skipped});
  EXPECT_EQ(durations_text(report, 2),
            "The 2 slowest cases:\n  1 min 15 s  slower.json\n      2.0 s  slow.json\n");
  EXPECT_THAT(durations_text(report, 10), Not(HasSubstr("s.json\n  s.json")));
  EXPECT_THAT(durations_text(report, 10), testing::StartsWith("The 3 slowest cases:\n"));
  EXPECT_EQ(durations_text(report_of({skipped}), 10), "");
}

}  // namespace
}  // namespace distgrad
