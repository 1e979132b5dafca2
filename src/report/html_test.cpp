#include "report/html.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <stack>

#include "report/heat_map.h"
#include "report/html_case.h"
#include "report/html_data.h"
#include "report/markup.h"
#include "report/sample_cases.h"
#include "report/summary.h"

namespace distgrad {
namespace {

using nlohmann::json;
using sample::report_of;
using sample::scalars;
using testing::HasSubstr;
using testing::Not;

FormatContext on(const std::string& host) {
  FormatContext context;
  context.host = host;
  return context;
}

// The content of the script elements of this type and id.
std::string script_of(const std::string& html, const std::string& id) {
  const std::string open = "<script type=\"application/json\" id=\"" + id + "\">";
  const std::size_t start = html.find(open);
  if (start == std::string::npos) return "null";
  const std::size_t first = start + open.size();
  return html.substr(first, html.find("</script>", first) - first);
}

// The elements that are still open at the end, or a wrong end tag; empty where all is nested well.
std::string nesting_problem(const std::string& html) {
  const std::set<std::string> kVoid = {"meta", "link", "input"};
  const std::regex tag("<(/?)([a-z][a-z0-9]*)[^>]*>|<!doctype html>");
  std::stack<std::string> open;
  for (std::size_t at = 0; (at = html.find('<', at)) != std::string::npos;) {
    std::smatch match;
    if (!std::regex_search(html.begin() + static_cast<std::ptrdiff_t>(at), html.end(), match, tag,
                           std::regex_constants::match_continuous))
      return "no tag: " + html.substr(at, 60);
    at += static_cast<std::size_t>(match.length());
    const std::string name = match[2];
    if (name.empty() || kVoid.contains(name)) continue;
    if (match[1] == "/") {
      if (open.empty() || open.top() != name) return "unexpected " + match.str();
      open.pop();
      continue;
    }
    open.push(name);
    // What is in these is no markup until their end.
    if (name == "script" || name == "style") at = html.find("</" + name, at);
  }
  return open.empty() ? "" : "never closed: " + open.top();
}

Explanation explained() {
  const auto both = [](double a, double b) {
    return std::vector<Array>{Array::scalar(a), Array::scalar(b)};
  };
  Explanation e;
  e.values = {{.kind = ExplainedValue::Kind::kInput,
               .title = "x   (local)",
               .value = both(1, 1),
               .observed_value = {},
               .cotangent = both(40, 60),
               .ranks_cotangent = both(20, 30),
               .mark = ""},
              {.kind = ExplainedValue::Kind::kStep,
               .title = "y = all_reduce(xx, op=sum)",
               .value = both(5, 5),
               .observed_value = {},
               .cotangent = both(10, 10),
               .ranks_cotangent = {},
               .mark = "the cotangents part here: the backward of this step is not the adjoint"}};
  e.parting = "In the backward of step y.";
  return e;
}

TEST(Html, IsWellFormedAndComplete) {
  Report report = report_of({sample::in_place_mismatch(), sample::match("mine/b.json"),
                             sample::hang("mine/c.json", ":world_size=3"),
                             sample::skipped("mine/d.json", "", "no GPU on this machine")});
  report.invalid = {{"mine/e.json", {3, 5}, "/steps/0", "unknown key", ""}};
  const std::string html = html_report(report, on("box"));
  EXPECT_EQ(nesting_problem(html), "");
  EXPECT_THAT(html,
              HasSubstr("1 not as expected, 1 broken, 1 problem in files or subjects, of 4 cases"));
  EXPECT_THAT(html, HasSubstr("mine/e.json:3:5: /steps/0: unknown key"));
  // For readers without scripts.
  EXPECT_THAT(
      html,
      HasSubstr("<b>FAIL</b> <code>mine/all_reduce_sum.json:subject=in_place</code>: mismatch"));
  const json index = json::parse(script_of(html, "index"));
  ASSERT_EQ(index["cases"].size(), 4u);
  EXPECT_EQ(index["order"], json({2, 0, 1, 3})) << "broken, mismatch, then the rest";
  EXPECT_EQ(json::parse(script_of(html, "details-0")).size(), 4u);
}

TEST(Html, AsksNothingOfTheNetwork) {
  const std::string html = html_report(report_of({sample::in_place_mismatch()}), {});
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  for (const char* word :
       {"http://", "https://", "@import", "url(", "src=\"", "fetch(", "innerHTML"})
    EXPECT_THAT(html, Not(HasSubstr(word)));
}

// Whatever a stranger's scenario or a rank says is text.
TEST(Html, WhatStrangersSayIsInert) {
  const std::string evil = "</script><script>alert(1)</script><!--\xE2\x80\xA8\xFF'\"&{{index}}";
  CaseResult r = sample::in_place_mismatch("mine/evil</script><b>.json");
  static Scenario scenario = *r.which.scenario;
  scenario.note = evil;
  scenario.steps = {{evil, "", Expression{evil, ""}}};
  r.which.scenario = &scenario;
  r.findings[0].text = evil;
  r.warnings = {{0, evil}};
  r.output = {evil};
  r.notes = {evil};
  Report report = report_of({r, sample::skipped("mine/s.json", "", evil)});
  report.command = evil;
  report.invalid = {{evil, {}, evil, evil, evil}};
  FormatContext context = on(evil);
  context.ended_early = evil;
  const std::string html = html_report(report, context);
  EXPECT_EQ(nesting_problem(html), "");
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, Not(HasSubstr("<!--")));
  EXPECT_THAT(html, Not(HasSubstr("\xE2\x80\xA8'")))
      << "no line separator within a script's strings";
  const json texts = json::parse(script_of(html, "texts"));
  EXPECT_THAT(texts.dump(), HasSubstr("<script>alert(1)</script>")) << "shown, all the same";
  EXPECT_NO_THROW(json::parse(script_of(html, "index")));
}

TEST(Html, DetailsHaveTheTableTheMapAndTheWay) {
  SharedTexts texts;
  const CaseResult r = sample::in_place_mismatch();
  const ValueTrace trace = trace_of(explained(), DType::kFloat64);
  const json details = html_case(r, {.trace = &trace}, texts);
  const json& input = details["inputs"][0];
  EXPECT_EQ(input["table"]["columns"], json({"rank 0", "rank 1"}));
  EXPECT_EQ(input["table"]["rows"][0][1], json({"20", "30"}));
  EXPECT_EQ(input["map"]["rows"][1]["error"], json({30.0}));
  EXPECT_EQ(input["map"]["rows"][1]["off"], json({1}));
  EXPECT_EQ(details["trace"]["rows"][0]["cotangents"]["observed"], json({"20", "30"}));
  EXPECT_FALSE(details["trace"]["rows"][1]["cotangents"].contains("observed"));
  EXPECT_THAT(texts.all().at(details["trace"]["rows"][1]["mark"]), HasSubstr("part here"));
}

TEST(Html, AMeasuredBackwardHasItsMatrices) {
  SharedTexts texts;
  const json details = html_case(sample::measured_mismatch(), {}, texts);
  const json& measured = details["findings"][0]["measured"];
  EXPECT_EQ(measured["matrices"]["measured"], json({1.0, 0.0, 0.0, 1.0}));
  EXPECT_EQ(measured["matrices"]["rows"], json({1, 1}));
}

TEST(Html, AMatchCarriesNoPictures) {
  SharedTexts texts;
  CaseResult r = sample::match("mine/a.json");
  r.gradients = {sample::debated(scalars({40, 60}))};
  const json details = html_case(r, {}, texts);
  EXPECT_EQ(details["inputs"].size(), 1u);
  EXPECT_FALSE(details["inputs"][0].contains("map"));
  EXPECT_FALSE(details.contains("trace"));
}

GradientComparison large(std::int64_t elements, std::size_t ranks) {
  GradientComparison g;
  g.input = "w";
  g.layout = "local";
  for (std::size_t r = 0; r < ranks; ++r) {
    std::vector<double> seen(static_cast<std::size_t>(elements), 1 / 3.0), truth = seen;
    seen[seen.size() / 2] = 7;
    g.observed_by_rank.emplace_back(sample::vector(seen));
    g.truth_by_rank.emplace_back(sample::vector(truth));
  }
  g.max_abs_error = 7 - 1 / 3.0;
  g.equal = false;
  return g;
}

TEST(HeatMap, ABlockHasItsWorstElement) {
  const HeatMap map = heat_map(large(10'000, 4), 1024);
  ASSERT_EQ(map.rows.size(), 4u);
  const HeatRow& row = map.rows[0];
  EXPECT_LE(row.cells.size(), 256u);
  EXPECT_GT(row.block, 1);
  const auto off =
      std::count_if(row.cells.begin(), row.cells.end(), [](const HeatCell& c) { return c.is_off; });
  EXPECT_EQ(off, 1);
  const HeatCell& worst = row.cells[static_cast<std::size_t>(5000 / row.block)];
  EXPECT_EQ(worst.element, 5000);
  EXPECT_EQ(worst.observed, 7);
}

TEST(HeatMap, AnErrorWithinItsBoundIsNotOff) {
  GradientComparison g = sample::debated(scalars({40.5, 30}));
  g.bounds = scalars({1, 1});
  g.equal = false;
  const HeatMap map = heat_map(g, 64);
  EXPECT_FALSE(map.rows[0].cells[0].is_off);
  EXPECT_TRUE(map.rows[1].cells[0].is_off);
  g.equal = true;  // not judged
  EXPECT_FALSE(heat_map(g, 64).rows[1].cells[0].is_off);
}

TEST(HeatMap, TellsAMissingGradientAndAnotherShape) {
  GradientComparison g = sample::debated({std::nullopt, sample::vector({1, 2})});
  g.equal = false;
  const HeatMap map = heat_map(g, 64);
  EXPECT_EQ(map.rows[0].lacking, "no gradient (None)");
  EXPECT_THAT(map.rows[1].lacking, HasSubstr("of shape [2]"));
}

TEST(HeatMap, OfManyRanksThoseFurthestOff) {
  GradientComparison g = large(1, 100);
  for (std::size_t r = 0; r < 100; ++r)
    if (r != 99) g.observed_by_rank[r] = g.truth_by_rank[r];
  const HeatMap map = heat_map(g, 1024);
  EXPECT_EQ(map.all_rows, 100u);
  ASSERT_EQ(map.rows.size(), 64u);
  EXPECT_EQ(map.rows.back().label, "rank 99");
}

TEST(ValueTrace, OfManyRanksShowsThoseThatDiffer) {
  Explanation e = explained();
  ExplainedValue& x = e.values[0];
  x.value.assign(40, Array::scalar(1));
  x.cotangent.assign(40, Array::scalar(2));
  x.ranks_cotangent = x.cotangent;
  x.ranks_cotangent[39] = Array::scalar(3);
  const ValueTrace trace = trace_of(e, DType::kFloat64);
  ASSERT_EQ(trace.ranks.size(), 16u);
  EXPECT_EQ(trace.ranks.back(), 39);
  EXPECT_EQ(trace.rows[0].cotangents.back().observed, "3");
  EXPECT_EQ(trace.rows[0].cotangents.front().observed, "");
}

// A forward value that a narrow dtype rounds is not shown as wrong beside one that is.
TEST(ValueTrace, RoundingIsNoDifference) {
  Explanation e = explained();
  e.values[1].observed_value = {Array::scalar(5.01), Array::scalar(7)};
  EXPECT_EQ(trace_of(e, DType::kBFloat16).rows[1].values[0].observed, "");
  EXPECT_EQ(trace_of(e, DType::kBFloat16).rows[1].values[1].observed, "7");
  EXPECT_EQ(trace_of(e, DType::kFloat64).rows[1].values[0].observed, "5.01");
}

// Whatever the cases hold, what matters most is kept, and the file says what is not.
TEST(Html, SizeIsBoundedAndSaysSo) {
  std::vector<CaseResult> cases;
  CaseResult noisy = sample::in_place_mismatch();
  noisy.gradients = {large(300, 4)};
  noisy.output = {std::string(10'000, 'x')};
  for (int i = 0; i < 300; ++i) {
    cases.push_back(noisy);
    cases.back().which.id += fmt::format(",world_size={}", i + 2);
    cases.back().findings[0].text +=
        std::string(100'000, static_cast<char>('a' + i % 26)) + std::to_string(i);
  }
  cases.push_back(sample::hang("mine/worst.json", ""));
  const Report report = report_of(cases);
  const HtmlData data = html_data(report, {});
  EXPECT_GT(data.without_details, 0u);
  EXPECT_GT(data.without_maps, 0u);
  const std::string html = html_report(report, {});
  EXPECT_LT(html.size(), 40'000'000u);
  EXPECT_THAT(
      html, HasSubstr(fmt::format("{} of 301 cases are in the list alone", data.without_details)));
  const json index = json::parse(data.index);
  EXPECT_EQ(index["cases"].back()[9], 0) << "the broken one is in the first piece";
}

TEST(Html, OfSeveralFilesAndSubjectsTheSummaryHasAMatrix) {
  CaseResult bad = sample::in_place_mismatch("a&b.json");
  CaseResult known = sample::in_place_mismatch("known.json");
  known.as_expected = true;
  known.which.expected.verdict = Verdict::kMismatch;
  const Report report =
      report_of({sample::match("right.json", ":subject=torch_nn", "torch_nn"), known, bad, bad,
                 sample::match("a&b.json", ":subject=torch_nn", "torch_nn")});
  const std::string html = html_report(report, {});
  EXPECT_EQ(nesting_problem(html), "");
  EXPECT_THAT(html,
              HasSubstr("<td class=\"off c0\"><a href=\"#file=a%26b.json&amp;subject=in_place\""));
  EXPECT_THAT(html, HasSubstr(">identity-backward <small>2</small></a>"));
  EXPECT_THAT(
      html,
      HasSubstr("<td class=\"as-expected c0\"><a href=\"#file=known.json&amp;subject=in_place\""));
  EXPECT_LT(html.find("<th scope=\"row\" title=\"a&amp;b.json\">a&amp;b</th>"),
            html.find("<th scope=\"row\" title=\"right.json\">right</th>"))
      << "failures first";
  EXPECT_THAT(
      html,
      HasSubstr(
          "in <a href=\"#finding=identity-backward&amp;file=a%26b.json\">a&amp;b.json</a> (2)"));
  EXPECT_THAT(html_report(report_of({bad}), {}), Not(HasSubstr("By scenario and subject")));
}

TEST(Html, TheMatrixNamesFilesBelowTheFolderThatAllShare) {
  const std::string html = html_report(
      report_of({sample::in_place_mismatch("all/bad/a.json"), sample::match("all/bad/b.json"),
                 sample::match("all/badly.json", ":subject=torch_nn", "torch_nn")}),
      {});
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\" title=\"all/bad/a.json\">bad/a</th>"));
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\" title=\"all/badly.json\">badly</th>"));
  EXPECT_LT(html.find("<h3>By finding</h3>"), html.find("<h3>By scenario and subject</h3>"));
}

TEST(Html, ManyProblemsAreFolded) {
  Report report = report_of({sample::match("right.json")});
  for (int i = 0; i < 7; ++i)
    report.invalid.push_back({"bad" + std::to_string(i) + ".json", {}, "", "is empty", ""});
  const std::string html = html_report(report, {});
  EXPECT_EQ(nesting_problem(html), "");
  EXPECT_LT(html.find("bad4.json"), html.find("<summary>2 more</summary>"));
  EXPECT_LT(html.find("<summary>2 more</summary>"), html.find("bad5.json"));
}

TEST(Html, BackticksAreCode) {
  EXPECT_EQ(html_prose("a `sync` & `x<y` b"), "a <code>sync</code> &amp; <code>x&lt;y</code> b");
  EXPECT_EQ(html_prose("one ` alone"), "one ` alone");
}

}  // namespace
}  // namespace distgrad
