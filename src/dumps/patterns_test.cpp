#include "dumps/patterns.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "dumps/comparison_report.h"

namespace distgrad::dumps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ParameterResult result(const std::string& name, Explanation explanation = Explanation::kRight,
                       const std::string& headline = "", const std::string& tp = "Replicate") {
  ParameterResult r;
  r.name = name;
  r.shape = {4, 4};
  r.explanation = explanation;
  r.headline = headline;
  r.placements = {{"tp", tp}};
  r.relative_error = 0.5;
  return r;
}

TEST(Patterns, NumbersInNamesAreNumbers) {
  EXPECT_TRUE(natural_less("layers.2.w", "layers.10.w"));
  EXPECT_FALSE(natural_less("layers.10.w", "layers.2.w"));
  EXPECT_TRUE(natural_less("a", "a.b"));
  EXPECT_FALSE(natural_less("a.1", "a.1"));
  EXPECT_NE(natural_less("a.01", "a.1"), natural_less("a.1", "a.01"));
  EXPECT_EQ(pattern_of("layers.12.h2.w"), "layers.*.h2.w");
}

TEST(Patterns, AllOfAPatternIsToldInOneLine) {
  std::vector<ParameterResult> all;
  for (int i = 0; i < 12; ++i) {
    const std::string layer = fmt::format("layers.{}.", i);
    all.push_back(result(layer + "norm.weight", Explanation::kSum, "needs a sum over tp"));
    all.push_back(result(layer + "norm.bias", Explanation::kSum, "needs a sum over tp"));
    all.push_back(result(layer + "mlp.weight", Explanation::kRight, "", "Shard(0)"));
  }
  const auto groups = groups_of(all);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_THAT(groups[0].patterns,
              ElementsAre("all 12 of layers.*.norm.weight", "all 12 of layers.*.norm.bias"));
  EXPECT_EQ(groups[0].common, "exactly the parameters that are Replicate along tp");
}

// The letter is in other names, too.
TEST(Patterns, AWordIsAPartOfTheName) {
  const std::vector<ParameterResult> all = {
      result("a.w", Explanation::kZero, "zero"), result("a.b", Explanation::kZero, "zero"),
      result("b.0.bias", Explanation::kRight, ""), result("b.0.w", Explanation::kRight, "")};
  EXPECT_EQ(groups_of(all).at(0).common,
            "exactly the parameters with \"a\" among the parts of their name");
}

TEST(Patterns, SomeOfAPatternAreNumbered) {
  std::vector<ParameterResult> all;
  for (int i = 0; i < 12; ++i)
    all.push_back(result(fmt::format("layers.{}.w", i),
                         i >= 9 || i == 2 ? Explanation::kZero : Explanation::kRight, "zero"));
  EXPECT_THAT(groups_of(all).at(0).patterns, ElementsAre("4 of the 12 layers.*.w (2,9-11)"));
  EXPECT_EQ(groups_of(all).at(0).common, "");
}

TEST(Patterns, OneConstantIsOneMistake) {
  std::vector<ParameterResult> all = {result("a", Explanation::kScaled, "0.137 times"),
                                      result("b", Explanation::kScaled, "0.138 times"),
                                      result("c", Explanation::kScaled, "0.2 times")};
  all[0].factor = 0.13749, all[1].factor = 0.13751, all[2].factor = 0.2;
  const auto groups = groups_of(all);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].members.size(), 2u);
}

TEST(Patterns, TheWorstComesFirstAndTheNearLast) {
  std::vector<ParameterResult> all = {
      result("near", Explanation::kClose, "n"), result("small", Explanation::kUnexplained, "s"),
      result("large", Explanation::kScaled, "l"), result("gone", Explanation::kMissing, "m")};
  all[0].worst = all[1].worst = all[2].worst = WorstElement{};
  all[1].relative_error = 0.1;
  all[2].relative_error = 7;
  all[2].factor = 8, all[2].factor_known = true;
  std::vector<std::string> order;
  for (const ResultGroup& g : groups_of(all)) order.push_back(g.members[0]->name);
  EXPECT_THAT(order, ElementsAre("large", "gone", "small", "near"));
}

TEST(ComparisonText, AThousandParametersFitOnAScreen) {
  DumpComparison c;
  c.world_size = 4;
  for (int i = 0; i < 1000; ++i)
    c.parameters.push_back(result(fmt::format("p{}.w", i), Explanation::kUnexplained,
                                  fmt::format("differs in way {}", i)));
  const std::string text = comparison_text(c, {});
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 50);
  EXPECT_THAT(text, HasSubstr("and 988 parameters, in 988 other ways"));
  EXPECT_THAT(text, HasSubstr("1,000 parameters on 4 ranks: 0 right, 1,000 not.\n"));
  EXPECT_THAT(comparison_text(c, {.full = true}), HasSubstr("FAIL  p999.w"));
}

// The hint is the finding's: ranks that hold other pieces are no copies that differ.
TEST(ComparisonText, AdviceIsTheFindings) {
  ParameterResult r;
  r.explanation = Explanation::kUnsynchronised;
  r.finding = "unsynchronised";
  EXPECT_THAT(advice_of(r), testing::HasSubstr("Ranks that should hold the same do not"));
  r.finding = "unexplained";
  EXPECT_EQ(advice_of(r), "");
}

TEST(ComparisonText, LongLinesGoOnBelow) {
  DumpComparison c;
  c.parameters = {result("layers.0.self_attention.query.weight", Explanation::kScaled,
                         "4 times the reference (4 = the number of ranks) on every rank"),
                  result("w", Explanation::kRight, "")};
  c.parameters[0].factor = 4;
  const std::string text = comparison_text(c, {.width = 60});
  EXPECT_THAT(text, HasSubstr("FAIL  layers.0.self_attention.query.weight   4 times the\n"
                              "      reference (4 = the number of ranks) on every rank\n"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 60u) << line;
}

}  // namespace
}  // namespace distgrad::dumps
