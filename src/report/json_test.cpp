#include "report/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "report/sample_cases.h"
#include "report/schema.h"
#include "report/summary.h"

namespace distgrad {
namespace {

using sample::report_of;
using Json = nlohmann::ordered_json;

Json json_report(const Report& report, const JsonReportOptions& options) {
  return Json::parse(json_report_text(report, options));
}

// The keywords of JSON Schema that report_schema() uses; strict in one thing more: no field that it
// does not describe.
class Checker {
 public:
  explicit Checker(const Json& root) : root_(root) {}

  // Where and why `value` is not what `schema` says; empty where it is.
  std::string check(const Json& value, const Json& schema, const std::string& at = "") const {
    for (const auto& [keyword, want] : schema.items()) {
      const std::string problem = check_keyword(value, schema, keyword, want, at);
      if (!problem.empty()) return problem;
    }
    return {};
  }

 private:
  std::string check_keyword(const Json& value, const Json& schema, const std::string& keyword,
                            const Json& want, const std::string& at) const {
    if (keyword == "$schema" || keyword == "title" || keyword == "description" ||
        keyword == "$defs")
      return {};
    if (keyword == "$ref")
      return check(value, root_.at(Json::json_pointer(want.get<std::string>().substr(1))), at);
    if (keyword == "type")
      return has_type(value, want) ? ""
                                   : at + " is not of type " + want.dump() + ": " + value.dump();
    if (keyword == "enum")
      return std::find(want.begin(), want.end(), value) != want.end()
                 ? ""
                 : at + " is none of " + want.dump();
    if (keyword == "const") return value == want ? "" : at + " is not " + want.dump();
    if (keyword == "minimum") return value >= want ? "" : at + " is below " + want.dump();
    if (keyword == "anyOf") return any_of(value, want, at);
    if (keyword == "items") return items(value, want, at);
    if (keyword == "required") return required(value, want, at);
    if (keyword == "properties") return properties(value, schema, at);
    if (keyword == "additionalProperties") return additional(value, want, at);
    return "unknown keyword " + keyword;
  }

  static bool has_type(const Json& value, const std::string& type) {
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    return type == value.type_name();
  }
  std::string any_of(const Json& value, const Json& schemas, const std::string& at) const {
    std::string problems;
    for (const Json& schema : schemas) {
      const std::string problem = check(value, schema, at);
      if (problem.empty()) return {};
      problems += problem + "; ";
    }
    return problems;
  }
  std::string items(const Json& value, const Json& schema, const std::string& at) const {
    for (std::size_t i = 0; value.is_array() && i < value.size(); ++i) {
      const std::string problem = check(value[i], schema, at + "/" + std::to_string(i));
      if (!problem.empty()) return problem;
    }
    return {};
  }
  static std::string required(const Json& value, const Json& keys, const std::string& at) {
    for (const Json& key : keys)
      if (!value.contains(key.get<std::string>())) return at + " lacks " + key.dump();
    return {};
  }
  std::string properties(const Json& value, const Json& schema, const std::string& at) const {
    for (const auto& [key, member] : value.items()) {
      if (!schema["properties"].contains(key)) return at + "/" + key + " is not described";
      const std::string problem = check(member, schema["properties"][key], at + "/" + key);
      if (!problem.empty()) return problem;
    }
    return {};
  }
  std::string additional(const Json& value, const Json& schema, const std::string& at) const {
    for (const auto& [key, member] : value.items()) {
      const std::string problem = check(member, schema, at + "/" + key);
      if (!problem.empty()) return problem;
    }
    return {};
  }

  Json root_;
};

std::string schema_problem(const Json& report) {
  const Json schema = report_schema();
  return Checker(schema).check(report, schema);
}

// Everything a report can hold.
Report rich_report() {
  CaseResult odd = sample::in_place_mismatch("odd.json");
  GradientComparison& g = odd.gradients[0];
  g.observed_by_rank = {std::nullopt, Array({2, 2}, {1, NAN, -HUGE_VAL, HUGE_VAL})};
  g.max_abs_error = HUGE_VAL;
  odd.which.expected = {Verdict::kMismatch,
                        "own-slice",
                        "all_gather",
                        "text",
                        {{"x", {std::nullopt, Array::scalar(NAN)}}},
                        {}};
  odd.findings.push_back({"objective", "", "", {}, std::nullopt, "text"});
  GradientComparison joined;
  joined.input = "w";
  joined.layout = "shard:0";
  joined.truth_full = Array({60, 60}, std::vector<double>(3600, 1));
  std::vector<double> off(3600, 1);
  off[61] = 4;
  joined.observed_full = Array({60, 60}, off);
  joined.observed_by_rank = {Array({30, 60}, std::vector<double>(1800, 1)),
                             Array({30, 60}, std::vector<double>(1800, 1))};
  odd.gradients.push_back(joined);
  odd.warnings = {{0, "c10d::allreduce_: an autograd kernel was not registered"}};
  odd.output = {"", "bytes \xff that are no UTF-8\n"};
  odd.notes = {"note"};
  odd.composed = {"all_reduce max: composed of all_gather"};
  Report report = report_of({sample::match("a.json"), odd, sample::hang("h.json", ""),
                             sample::skipped("s.json", ":backend=nccl", "no GPU on this machine")});
  report.invalid = {{"x.json", {3, 5}, "/steps/0", "message", ""}};
  return report;
}

TEST(JsonReport, AsInTheContract) {
  CaseResult r = sample::in_place_mismatch("scenarios/debate/all_reduce_sum.json");
  r.as_expected = true;
  r.which.expected.verdict = Verdict::kMismatch;
  r.which.expected.finding = "identity-backward";
  r.findings[0].text = "...";
  r.warnings = {{0, "c10d::allreduce_: an autograd kernel was not registered ..."}};
  const Json report = json_report(report_of({sample::match("a.json"), r}), {false, "here"});
  EXPECT_EQ(report["format"], 1);
  EXPECT_EQ(report["tool"]["name"], "distgrad");
  EXPECT_EQ(report["tool"]["torch"], "2.15.0");
  EXPECT_EQ(report["tool"]["host"], "here");
  EXPECT_EQ(report["summary"],
            Json::parse(R"({"cases": 2, "as_expected": 2, "not_as_expected": 0, "broken": 0,
                                               "skipped": 0, "disputed": 0, "elapsed_s": 0.4})"));
  EXPECT_EQ(report["cases"][1], Json::parse(R"({
    "id": "scenarios/debate/all_reduce_sum.json:subject=in_place",
    "file": "scenarios/debate/all_reduce_sum.json", "name": "all_reduce_sum",
    "subject": "in_place", "backend": "gloo", "world_size": 2, "dtype": "float64", "objective": "sum",
    "verdict": "mismatch",
    "expected": { "verdict": "mismatch", "finding": "identity-backward" },
    "as_expected": true, "why": "",
    "losses": { "simulated": [25.0, 25.0], "distributed": [25.0, 25.0] },
    "gradients": { "x": {
        "layout": "local",
        "truth": { "by_rank": [40.0, 60.0] },
        "observed": { "by_rank": [20.0, 30.0] },
        "matches": { "sum": false, "mean": true, "replicated": true, "rank:0": true, "rank:1": true },
        "max_abs_error": 30.0, "max_rel_error": 0.5, "bound": 0.0, "first_difference": { "rank": 0, "index": [] }
    } },
    "findings": [ { "rule": "identity-backward", "collective": "all_reduce", "step": "y", "ranks": [0, 1],
                    "factor": 0.5, "text": "..." } ],
    "warnings": [ { "rank": 0, "text": "c10d::allreduce_: an autograd kernel was not registered ..." } ],
    "composed": [], "notes": [],
    "elapsed_s": 0.004
  })"));
}

TEST(JsonReport, WrittenCaseByCaseItIsLaidOutAsOneText) {
  const std::vector<CaseResult> cases = {sample::match("a.json"), sample::in_place_mismatch(),
                                         sample::measured_mismatch()};
  for (std::size_t count = 0; count <= cases.size(); ++count) {
    const Report report = report_of({cases.begin(), cases.begin() + static_cast<long>(count)});
    for (const bool full : {false, true}) {
      const JsonReportOptions options = {.full = full, .host = "ci"};
      EXPECT_EQ(json_report_text(report, options), json_text(json_report(report, options)))
          << count;
    }
  }
}

TEST(JsonReport, AMeasuredBackwardIsAFieldOfItsFinding) {
  Report all;
  all.cases = {sample::measured_mismatch()};
  const Json report = json_report(all, {});
  EXPECT_EQ(report["cases"][0]["findings"][0]["measured"], Json::parse(R"({
    "formula": "x̄_r = ȳ_r", "right": "x̄_r = Σ_k ȳ_k", "linear": true,
    "shown_by": "a basis of 2 cotangents and 5 random ones", "ranks": [0, 1],
    "coefficients": [[1.0, 0.0], [0.0, 1.0]],
    "matrices": { "rows": [1, 1], "columns": [1, 1], "measured": [[1.0, 0.0], [0.0, 1.0]],
                  "right": [[1.0, 1.0], [1.0, 1.0]] } })"));
  EXPECT_EQ(schema_problem(report), "");
  all.cases[0].findings[0].measured->coefficients.clear();
  all.cases[0].findings[0].measured->matrices.reset();
  EXPECT_EQ(json_report(all, {})["cases"][0]["findings"][0]["measured"]["coefficients"], nullptr);
  EXPECT_EQ(schema_problem(json_report(all, {})), "");
}

TEST(JsonReport, MissingAndNonFiniteValues) {
  const Json report = json_report(rich_report(), {});
  const Json& x = report["cases"][1]["gradients"]["x"];
  EXPECT_EQ(x["observed"]["by_rank"], Json::parse(R"([null, [[1.0, "nan"], ["-inf", "inf"]]])"));
  EXPECT_EQ(x["max_abs_error"], "inf");
  EXPECT_EQ(report["cases"][1]["findings"][1]["factor"], nullptr);
  EXPECT_EQ(report["cases"][2]["error"]["kind"], "hang");
  EXPECT_EQ(report["cases"][2]["losses"]["distributed"], nullptr);
  EXPECT_EQ(report["cases"][3]["as_expected"], nullptr);
  EXPECT_EQ(report["invalid"][0]["pointer"], "/steps/0");
}

TEST(JsonReport, LargeTensorsAreSummarisedUnlessFull) {
  const Json w = json_report(rich_report(), {})["cases"][1]["gradients"]["w"];
  EXPECT_EQ(w["truth"]["full"]["shape"], Json({60, 60}));
  EXPECT_EQ(w["truth"]["full"]["norms"]["l2"], 60.0);
  EXPECT_EQ(w["observed"]["full"]["worst"][0],
            Json::parse(R"({"index": [1, 1], "value": 4.0, "abs_error": 3.0})"));
  EXPECT_EQ(w["observed"]["full"]["worst"].size(), 10u);
  const Json full = json_report(rich_report(), {true, ""})["cases"][1]["gradients"]["w"];
  EXPECT_EQ(full["observed"]["full"].size(), 60u);
  EXPECT_EQ(full["observed"]["full"][1][1], 4.0);
}

TEST(JsonReport, ExactlyOneThousandElementsAreStillThere) {
  CaseResult r = sample::in_place_mismatch();
  r.gradients[0].observed_by_rank[0] = Array({1000}, std::vector<double>(1000, 1));
  r.gradients[0].observed_by_rank[1] = Array({1001}, std::vector<double>(1001, 1));
  const Json observed =
      json_report(report_of({r}), {})["cases"][0]["gradients"]["x"]["observed"]["by_rank"];
  EXPECT_TRUE(observed[0].is_array());
  EXPECT_TRUE(observed[1].is_object());
}

TEST(JsonReport, FitsItsSchema) {
  EXPECT_EQ(schema_problem(json_report(rich_report(), {})), "");
  EXPECT_EQ(schema_problem(json_report(rich_report(), {true, ""})), "");
  EXPECT_EQ(schema_problem(json_report(Report{}, {})), "");
}

TEST(JsonReport, TheSchemaRefusesWhatIsWrong) {
  const auto broken = [](const char* pointer, Json value) {
    Json report = json_report(rich_report(), {});
    report[Json::json_pointer(pointer)] = std::move(value);
    return schema_problem(report);
  };
  EXPECT_NE(broken("/cases/0/verdict", "fine"), "");
  EXPECT_NE(broken("/cases/0/as_expected", "yes"), "");
  EXPECT_NE(broken("/cases/1/gradients/x/observed/by_rank/0", "NaN"), "");
  EXPECT_NE(broken("/cases/1/findings/0/rule", "identity"), "");
  EXPECT_NE(broken("/summary/broken", -1), "");
  EXPECT_NE(broken("/cases/1/gradients/w/truth/full", Json::object()), "");
}

TEST(JsonReport, ItsTextReadsBackAndKeepsShortThingsOnOneLine) {
  const Report report = rich_report();
  const std::string text = json_report_text(report, {});
  const Json read = Json::parse(text);
  EXPECT_EQ(read["cases"][0], json_report(report, {})["cases"][0]);
  EXPECT_EQ(read["cases"][1]["output"][1], "bytes \xEF\xBF\xBD that are no UTF-8\n");
  EXPECT_THAT(text,
              testing::HasSubstr(
                  R"("losses": { "simulated": [25.0, 25.0], "distributed": [25.0, 25.0] },)"));
  EXPECT_EQ(text.back(), '\n');
}

}  // namespace
}  // namespace distgrad
