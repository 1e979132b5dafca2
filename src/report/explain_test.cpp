#include "report/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <sstream>

#include "report/sample_cases.h"
#include "report/words.h"

namespace distgrad {
namespace {

using testing::HasSubstr;
using testing::Not;
using Kind = ExplainedValue::Kind;

std::vector<Array> by_rank(std::initializer_list<double> values) {
  std::vector<Array> all;
  for (const double v : values) all.push_back(Array::scalar(v));
  return all;
}

ExplainedValue value(Kind kind, const std::string& title, std::vector<Array> values,
                     std::vector<Array> cotangent, std::vector<Array> ranks = {}) {
  return {kind, title, std::move(values), {}, std::move(cotangent), std::move(ranks), ""};
}

Explanation debate() {
  Explanation e;
  e.note = "Is the gradient scaled by the world size?";
  e.setting = "in_place carries out the collectives.";
  e.how_known = "observed at every collective";
  e.values = {
      value(Kind::kInput, "x   (local)", by_rank({1, 1}), by_rank({40, 60}), by_rank({20, 30})),
      value(Kind::kStep, "xx = (rank + 2) * x", by_rank({2, 3}), by_rank({20, 20}),
            by_rank({10, 10})),
      value(Kind::kStep, "y = all_reduce(xx, op=sum)", by_rank({5, 5}), by_rank({10, 10})),
      value(Kind::kLoss, "loss: l_r = y * y", by_rank({25, 25}), by_rank({1, 1})),
  };
  e.values[2].mark = "the cotangents part here";
  e.parting = "In the backward of step y.";
  e.measured = "step y (all_reduce) x̄_r = ȳ_r; right is x̄_r = Σ_k ȳ_k.";
  return e;
}

std::size_t widest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t widest = 0;
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, width_of(line));
  return widest;
}

std::string unwrapped(std::string text) {
  for (std::size_t at; (at = text.find("\n  ")) != std::string::npos;) text.replace(at, 3, " ");
  return text;
}

Array counting(Shape shape) {
  std::vector<double> values(static_cast<std::size_t>(element_count(shape)));
  std::iota(values.begin(), values.end(), 1.0);
  return Array(std::move(shape), std::move(values));
}

TEST(Explain, ShowsValuesAndCotangentsByRankAndWhereTheyPart) {
  const std::string text = explain_text(debate(), sample::in_place_mismatch(), {});
  EXPECT_THAT(text, HasSubstr("                        rank 0   rank 1\n"
                              "  x (local)\n"
                              "    value                    1        1\n"
                              "    gradient, true          40       60\n"
                              "    gradient, ranks'        20       30\n"
                              "  xx = (rank + 2) * x\n"
                              "    value                    2        3\n"
                              "    cotangent, true         20       20\n"
                              "    cotangent, ranks'       10       10\n"
                              "  y = all_reduce(xx, op=sum)\n"
                              "    >>> the cotangents part here\n"
                              "    value                    5        5\n"
                              "    cotangent               10       10\n"
                              "  loss: l_r = y * y\n"
                              "    value                   25       25\n"
                              "    cotangent                1        1\n"));
}

TEST(Explain, TellsTheWholeCaseInOrderAndHowToSeeItAgain) {
  TextOptions options;
  options.again = "distgrad explain --timeout 3";
  CaseResult result = sample::in_place_mismatch();
  result.warnings = {{0, "first line\nand a second that only the full report has"}};
  const std::string text = explain_text(debate(), result, options);
  std::size_t at = 0;
  for (const char* part :
       {"FAIL  mine/all_reduce_sum.json:subject=in_place", "Is the gradient scaled",
        "\nThe program\n", "y = all_reduce",
        "\nWhere observed and true values part\n  In the backward of step y.\n",
        "  Measured: step y (all_reduce) x̄_r = ȳ_r; right is x̄_r = Σ_k ȳ_k.\n",
        "declared: every rank's loss counts", "dropped the other ranks'",
        "and a second that only the full report has",
        "\nAgain: distgrad explain --timeout 3 'mine/all_reduce_sum.json:subject=in_place'\n"}) {
    const std::size_t found = text.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << "\n" << text;
    at = found;
  }
  EXPECT_LE(widest_line(text), 100u);
}

// A reader who sees "ranks'" must be told where it comes from; nobody else needs to hear of it.
TEST(Explain, SaysWhereTheRanksCotangentsComeFromOnlyWhereTheyAreShown) {
  EXPECT_THAT(unwrapped(explain_text(debate(), sample::in_place_mismatch(), {})),
              HasSubstr("\"ranks'\" is what the ranks' own backward arrived at: observed at"));
  Explanation e = debate();
  for (ExplainedValue& v : e.values) v.ranks_cotangent.clear();
  const std::string text = explain_text(e, sample::match("a.json"), {});
  EXPECT_THAT(text, Not(HasSubstr("ranks'\"")));
  EXPECT_THAT(text, HasSubstr("    cotangent               20       20\n"));
}

TEST(Explain, ADifferenceInForwardIsShownBesideTheSimulation) {
  Explanation e = debate();
  e.values[2].observed_value = by_rank({5, 5.00000001});
  const std::string text = explain_text(e, sample::in_place_mismatch(), {});
  EXPECT_THAT(text, HasSubstr("value, simulated"));
  EXPECT_THAT(text, HasSubstr("5.00000001")) << "six digits would not tell them apart";
}

TEST(Explain, LargeTensorsAreSummarisedWithTheWorstElement) {
  Explanation e;
  const Array truth = counting({4, 3});
  std::vector<double> off(truth.values().begin(), truth.values().end());
  off[10] = 7.5;
  e.values = {
      value(Kind::kStep, "y = x @ w", {truth, truth}, {truth, truth}, {truth, Array({4, 3}, off)})};
  TextOptions options;
  const std::string text = explain_text(e, sample::match("a.json"), options);
  EXPECT_THAT(
      text,
      HasSubstr("    value               all ranks   1, 2, 3, ... shape [4, 3], norm 25.5\n"));
  EXPECT_THAT(text, HasSubstr("    furthest apart on rank 1 at [3, 1]: 7.5 in place of 11\n"));
  EXPECT_THAT(text, Not(HasSubstr("12")));
  options.full = true;
  const std::string full = explain_text(e, sample::match("a.json"), options);
  EXPECT_THAT(full, HasSubstr("[10, 7.5, 12]"));
  EXPECT_LE(widest_line(full), 100u);
}

TEST(Explain, OfManyRanksTheOneThatIsWrongIsShown) {
  Explanation e;
  std::vector<Array> truth(20, Array::scalar(1)), ranks = truth;
  ranks[17] = Array::scalar(4);
  e.values = {value(Kind::kStep, "y = x", truth, truth, ranks)};
  TextOptions options;
  const std::string text = explain_text(e, sample::match("a.json"), options);
  EXPECT_THAT(text, HasSubstr("rank 17"));
  EXPECT_THAT(text, Not(HasSubstr("rank 16")));
  EXPECT_THAT(text, HasSubstr("(8 of 20 ranks shown; --full shows all)"));
  options.full = true;
  EXPECT_THAT(explain_text(e, sample::match("a.json"), options), HasSubstr("rank 16"));
}

TEST(Explain, ShapesThatDifferAreShownAndNoElementIsCompared) {
  Explanation e;
  e.values = {value(Kind::kStep, "y = x", {counting({20})}, {counting({20})}, {counting({2})})};
  const std::string text = explain_text(e, sample::match("a.json"), {});
  EXPECT_THAT(text, HasSubstr("shape [20]"));
  EXPECT_THAT(text, HasSubstr("[1, 2]"));
  EXPECT_THAT(text, Not(HasSubstr("furthest")));
}

TEST(Explain, WhatCouldNotBeSimulatedIsToldWithoutAProgram) {
  const std::string text =
      explain_text({}, sample::skipped("a.json", "", "no GPU on this machine"), {});
  EXPECT_THAT(text, HasSubstr("no GPU on this machine"));
  EXPECT_THAT(text, Not(HasSubstr("The program")));
}

TEST(Explain, AFilesTextCannotReachTheTerminal) {
  Explanation e = debate();
  e.note = "note \033[31m";
  e.values[1].title = "xx = \033[2J";
  EXPECT_THAT(explain_text(e, sample::in_place_mismatch(), {}), Not(HasSubstr("\033")));
}

}  // namespace
}  // namespace distgrad
