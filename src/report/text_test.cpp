#include "report/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/sample_cases.h"
#include "report/summary.h"

namespace distgrad {
namespace {

using sample::report_of;
using testing::HasSubstr;
using testing::Not;

CaseResult as_expected_mismatch(const std::string& file) {
  CaseResult r = sample::in_place_mismatch(file);
  r.as_expected = true;
  r.which.expected.verdict = Verdict::kMismatch;
  return r;
}

TEST(TextReport, StatusFirstThenWhatHappened) {
  const Report report =
      report_of({sample::match("debate/all_reduce_sum.json", ":subject=torch_nn", "torch_nn"),
                 as_expected_mismatch("debate/all_reduce_sum.json"), sample::in_place_mismatch(),
                 sample::skipped("mine/mlp.json", ":backend=nccl", "no GPU on this machine")});
  TextOptions options;
  options.align = true;
  EXPECT_EQ(text_report(report, options),
            "ok    debate/all_reduce_sum.json:subject=torch_nn   match\n"
            "ok    debate/all_reduce_sum.json:subject=in_place   mismatch, as expected: "
            "identity-backward\n"
            "FAIL  mine/all_reduce_sum.json:subject=in_place\n"
            "      mismatch: identity-backward in step y (all_reduce)\n"
            "  x            rank 0   rank 1\n"
            "  observed         20       30\n"
            "  sum              40       60   declared: every rank's loss counts\n"
            "  mean             20       30   = observed\n"
            "  replicated       20       30   = observed: one loss, computed on every rank\n"
            "  The gradients are 1/2 of the truth on every rank: the backward of all_reduce passed "
            "the local\n"
            "  cotangent on and dropped the other ranks'. Right if the loss is one loss that every "
            "rank computes\n"
            "  (objective \"replicated\").\n"
            "skip  mine/mlp.json:backend=nccl                    no GPU on this machine\n"
            "\n"
            "2 as expected, 1 not, 1 skipped in 0.4 s.\n"
            "Again: distgrad run 'mine/all_reduce_sum.json:subject=in_place'\n");
}

TEST(TextReport, PlainTextIsNotPaddedSoThatANewCaseChangesOneLine) {
  const std::string text =
      text_report(report_of({sample::match("a.json"), sample::match("much/longer/name.json")}), {});
  EXPECT_EQ(text,
            "ok    a.json   match\n"
            "ok    much/longer/name.json   match\n"
            "\n"
            "2 as expected in 0.4 s.\n");
}

TEST(TextReport, ShortSummariesHaveTheCommandBeside) {
  Report report = report_of({sample::hang("h.json", ":world_size=3")});
  EXPECT_THAT(
      text_report(report, {}),
      HasSubstr("0 as expected, 1 broken in 0.4 s. Again: distgrad run 'h.json:world_size=3'\n"));
}

TEST(TextReport, ColorsOnlyTheStatus) {
  TextOptions options;
  options.color = true;
  EXPECT_THAT(text_report(report_of({sample::match("a.json")}), options),
              HasSubstr("\033[32mok  \033[0m  a.json   match\n"));
}

TEST(TextReport, ColorMarksWhatDiffers) {
  TextOptions options;
  options.color = true;
  const std::string text = case_text(sample::in_place_mismatch(), options);
  EXPECT_THAT(text, HasSubstr("  observed     \033[31m    20\033[0m   \033[31m    30\033[0m\n"));
  EXPECT_THAT(text, HasSubstr("  mean             20       30   = observed"));
}

TEST(TextReport, QuietKeepsFailuresAndTheSummary) {
  TextOptions options;
  options.quiet = true;
  const std::string text =
      text_report(report_of({sample::match("a.json"), sample::in_place_mismatch(),
                             sample::skipped("s.json", "", "no GPU")}),
                  options);
  EXPECT_THAT(text, Not(HasSubstr("a.json   match")));
  EXPECT_THAT(text, Not(HasSubstr("no GPU")));
  EXPECT_THAT(text, testing::StartsWith("FAIL  mine/all_reduce_sum.json"));
  EXPECT_THAT(text, HasSubstr("1 as expected, 1 not, 1 skipped"));
}

TEST(TextReport, BrokenCasesShowTheErrorAndWhatTheRanksWrote) {
  CaseResult r = sample::hang("h.json", "");
  r.error->message = "rank 1 raised\nTraceback:\n  line 1";
  r.output = {"", "first\nlast \033[31m\n"};
  r.warnings = {{0, "no kernel"}, {1, "no kernel"}, {1, "another"}};
  EXPECT_EQ(case_text(r, {}),
            "ERR   h.json   error: hang on rank 1 in step y: rank 1 raised\n"
            "    rank 1 raised\n"
            "    Traceback:\n"
            "      line 1\n"
            "  warning from ranks 0, 1: no kernel\n"
            "  warning from rank 1: another\n"
            "  output of rank 1:\n"
            "    first\n"
            "    last \\x1b[31m\n");
}

TEST(TextReport, LongOutputIsCutToItsEnd) {
  CaseResult r = sample::hang("h.json", "");
  for (int i = 0; i < 50; ++i)
    r.output.resize(1), r.output[0] += "line " + std::to_string(i) + "\n";
  const std::string text = case_text(r, {});
  EXPECT_THAT(text, HasSubstr("  output of rank 0, the last 20 of 50 lines:\n    line 30\n"));
  EXPECT_THAT(text, HasSubstr("    line 49\n"));
  TextOptions full;
  full.full = true;
  EXPECT_THAT(case_text(r, full), HasSubstr("  output of rank 0:\n    line 0\n"));
}

TEST(TextReport, OfADumpedStackTheUsersFramesAreShown) {
  CaseResult r = sample::hang("h.json", "");
  r.output = {
      "Stack (most recent call first):\n"
      "  File \"/home/me/layers.py\", line 44 in spins\n"
      "  File \"/venv/lib/distgrad/ranks/runner.py\", line 154 in _to_end\n"
      "  File \"/home/me/distgrad/mine.py\", line 7 in calls\n"};
  EXPECT_THAT(case_text(r, {}), HasSubstr("    Stack (most recent call first):\n"
                                          "      File \"/home/me/layers.py\", line 44 in spins\n"
                                          "      File \"/home/me/distgrad/mine.py\", line 7 in "
                                          "calls\n"));
  EXPECT_THAT(case_text(r, {}), testing::Not(HasSubstr("runner.py")));
  TextOptions full;
  full.full = true;
  EXPECT_THAT(case_text(r, full), HasSubstr("runner.py"));
}

TEST(TextReport, AMatchWhereAMismatchWasExpectedShowsBoth) {
  CaseResult r = sample::match("a.json");
  r.as_expected = false;
  r.which.expected.verdict = Verdict::kMismatch;
  r.why = "expected mismatch, got match";
  GradientComparison g = sample::debated(sample::scalars({40, 60}));
  g.matches = {{"sum", true}};
  r.gradients = {g};
  const std::string text = case_text(r, {});
  EXPECT_THAT(text,
              testing::StartsWith("FAIL  a.json   match, though the file expects mismatch\n  x "));
  EXPECT_THAT(text, HasSubstr("  expected mismatch, got match.\n"));
}

TEST(TextReport, FurtherExplanationsAreNamedAndExplainedWithVerbose) {
  CaseResult r = sample::in_place_mismatch();
  r.findings.push_back({"objective", "", "", {0, 1}, 0.5, "Right for another objective."});
  r.findings.push_back({"scaled", "all_reduce", "y", {0, 1}, 0.5, "Divided."});
  r.warnings = {{0, std::string(300, 'w')}};
  EXPECT_THAT(
      case_text(r, {}),
      HasSubstr("\n  Also: objective; scaled in step y (all_reduce) (--verbose explains).\n"));
  EXPECT_THAT(case_text(r, {}), HasSubstr("www...\n"));
  TextOptions verbose;
  verbose.verbose = true;
  EXPECT_THAT(case_text(r, verbose), HasSubstr("\n  Also objective: Right for another objective.\n"
                                               "  Also scaled in step y (all_reduce): Divided.\n"));
  EXPECT_THAT(case_text(r, verbose), HasSubstr(std::string(300, 'w') + "\n"));
}

TEST(TextReport, WhatWasMeasuredStandsFirst) {
  const std::string text = case_text(sample::measured_mismatch(), {});
  EXPECT_THAT(text, testing::HasSubstr("(all_reduce)\n"
                                       "  measured   x̄_r = ȳ_r\n"
                                       "  right      x̄_r = Σ_k ȳ_k\n"));
}

TEST(TextReport, OnlyInputsThatDifferAreShown) {
  CaseResult r = sample::in_place_mismatch();
  GradientComparison fine = sample::debated(sample::scalars({40, 60}));
  fine.input = "fine";
  r.gradients.push_back(fine);
  EXPECT_THAT(case_text(r, {}), Not(HasSubstr("fine")));
  TextOptions verbose;
  verbose.verbose = true;
  EXPECT_THAT(case_text(r, verbose), HasSubstr("  fine         rank 0"));
}

TEST(TextReport, ManyWrongInputsAreNamed) {
  CaseResult r = sample::in_place_mismatch();
  for (const char* name : {"b", "c", "d", "e", "f"}) {
    r.gradients.push_back(r.gradients[0]);
    r.gradients.back().input = name;
  }
  EXPECT_THAT(case_text(r, {}), HasSubstr("  Not shown (--full does): e, f.\n"));
}

TEST(TextReport, VerboseSaysHowCloseAndHowLong) {
  CaseResult r = sample::match("a.json");
  GradientComparison g = sample::debated(sample::scalars({40, 60}));
  g.matches = {{"sum", true}};
  r.gradients = {g};
  r.composed = {"all_reduce max: composed of all_gather"};
  r.bound_notes = {"x: 3 roundings"};
  TextOptions options;
  options.verbose = true;
  const std::string text = case_text(r, options);
  EXPECT_THAT(text, HasSubstr("  losses by rank: 25, 25\n"));
  EXPECT_THAT(text, HasSubstr("  x: largest error 0 (relative 0), exact: compared bit by bit\n"));
  EXPECT_THAT(text, HasSubstr("  x: 3 roundings\n"));
  EXPECT_THAT(text, HasSubstr("  composed: all_reduce max: composed of all_gather\n"));
  EXPECT_THAT(text, HasSubstr("  took 0.004 s\n"));
}

TEST(TextReport, WhatWasNotCheckedIsSaidOnce) {
  CaseResult a = sample::match("a.json"), b = sample::match("b.json");
  a.notes = b.notes = {"the file's truth does not apply: the objective was overridden"};
  EXPECT_THAT(text_report(report_of({a, b}), {}),
              HasSubstr("\nNote (2 cases): the file's truth does not apply: the objective was "
                        "overridden\n2 as expected"));
}

TEST(TextReport, ManyCasesAreFoldedByFileAndFailuresAreNot) {
  std::vector<CaseResult> cases;
  for (int i = 0; i < 70; ++i)
    cases.push_back(sample::match("a.json", ":world_size=" + std::to_string(i)));
  cases.push_back(sample::skipped("a.json", ":backend=nccl", "no GPU"));
  cases.push_back(sample::in_place_mismatch("b.json"));
  cases.push_back(sample::match("b.json", ":subject=reference"));
  const std::string text = text_report(report_of(cases), {});
  EXPECT_THAT(text, testing::StartsWith("ok    a.json   70 cases as expected\n"
                                        "skip  a.json   1 case: no GPU\n"
                                        "ok    b.json   1 case as expected\n"
                                        "FAIL  b.json:subject=in_place   mismatch"));
  TextOptions verbose;
  verbose.verbose = true;
  EXPECT_THAT(text_report(report_of(cases), verbose),
              HasSubstr("ok    a.json:world_size=69   match\n"));
}

TEST(TextReport, OfManyFailuresWithOneFindingTheFirstAreShownAndTheWorstIsNamed) {
  std::vector<CaseResult> cases;
  for (int i = 0; i < 100; ++i) {
    cases.push_back(sample::in_place_mismatch("b" + std::to_string(i) + ".json"));
    cases.back().gradients[0].max_abs_error = i == 70 ? 50 : 20;
  }
  cases.push_back(sample::hang("h.json", ""));
  const std::string text = text_report(report_of(cases), {});
  EXPECT_THAT(text, HasSubstr("FAIL  b2.json"));
  EXPECT_THAT(text, Not(HasSubstr("FAIL  b3.json")));
  EXPECT_THAT(text,
              HasSubstr("...   97 cases more: identity-backward (all_reduce) (--full shows all)\n"
                        "      The worst of them all: b70.json:subject=in_place\n"));
  EXPECT_THAT(text,
              testing::EndsWith("\nBy finding: 100 identity-backward (all_reduce), 1 hang.\n"));
  TextOptions full;
  full.full = true;
  EXPECT_THAT(text_report(report_of(cases), full), HasSubstr("FAIL  b99.json"));
  cases.resize(40);
  EXPECT_THAT(text_report(report_of(cases), {}), HasSubstr("FAIL  b39.json"))
      << "few cases are not folded";
}

TEST(TextReport, AnInvalidFileCountsOnceHoweverMuchIsWrongWithIt) {
  Report report = report_of({sample::match("a.json")});
  report.invalid = {{"x.json", {1, 1}, "/a", "m", ""},
                    {"x.json", {2, 1}, "/b", "m", ""},
                    {"y.json", {1, 1}, "", "m", ""}};
  EXPECT_THAT(text_report(report, {}), HasSubstr("\n1 as expected, 2 invalid files in 0.4 s.\n"));
}

TEST(TextReport, OfManyFailuresTheFirstIsNamed) {
  const CaseResult bad = sample::in_place_mismatch();
  EXPECT_THAT(
      text_report(report_of({bad, bad, bad, bad}), {}),
      HasSubstr("\nAgain, the first: distgrad run 'mine/all_reduce_sum.json:subject=in_place'\n"));
}

TEST(TextReport, LongNamesDoNotPushOthersAway) {
  const std::string longest = std::string(90, 'n') + ".json";
  TextOptions options;
  options.align = true;
  const std::string text =
      text_report(report_of({sample::match(longest), sample::match("a.json")}), options);
  EXPECT_THAT(text, HasSubstr("ok    " + longest + "   match\n"));
  EXPECT_THAT(text, HasSubstr("ok    a.json" + std::string(72 - 6, ' ') + "   match\n"));
}

}  // namespace
}  // namespace distgrad
