#include "report/objectives_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "report/sample_cases.h"

namespace distgrad {
namespace {

using sample::debated;
using sample::scalars;

TEST(ObjectivesTable, ShowsBothSidesOfTheDebate) {
  const CaseResult r = sample::in_place_mismatch();
  EXPECT_EQ(objectives_table(r.gradients[0], {"sum"}),
            "  x            rank 0   rank 1\n"
            "  observed         20       30\n"
            "  sum              40       60   declared: every rank's loss counts\n"
            "  mean             20       30   = observed\n"
            "  replicated       20       30   = observed: one loss, computed on every rank\n");
}

TEST(ObjectivesTable, SaysWhereTheDeclaredObjectiveIsMet) {
  GradientComparison g = debated(scalars({40, 60}));
  g.matches = {{"sum", true}, {"mean", false}, {"replicated", false}};
  const std::string table = objectives_table(g, {"sum"});
  EXPECT_NE(table.find("40       60   declared, = observed: every rank's loss counts\n"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("mean             20       30\n"), std::string::npos) << table;
}

TEST(ObjectivesTable, GivesFactorsWhereNoObjectiveIsMet) {
  const std::string table = objectives_table(debated(scalars({80, 120})), {"sum"});
  EXPECT_NE(table.find("declared: every rank's loss counts; observed is 2 x this\n"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("mean             20       30   observed is 4 x this\n"), std::string::npos)
      << table;
}

TEST(ObjectivesTable, OneRanksLossIsShownOnlyWhereNothingElseExplains) {
  GradientComparison g = debated(scalars({7, 8}));
  g.truth_by_objective[4].second = scalars({7, 8});
  g.matches = {{"rank:1", true}};
  const std::string table = objectives_table(g, {"sum"});
  EXPECT_EQ(table.find("rank:0"), std::string::npos) << table;
  EXPECT_NE(table.find("rank:1            7        8   = observed: only rank 1's loss counts\n"),
            std::string::npos)
      << table;
}

TEST(ObjectivesTable, MissingGradientsAreSaidToBeNone) {
  GradientComparison g = debated({std::nullopt, Array::scalar(60)});
  const std::string table = objectives_table(g, {"sum"});
  EXPECT_NE(table.find("  observed       none       60\n"), std::string::npos) << table;
}

TEST(ObjectivesTable, OneRankHasOneTruth) {
  GradientComparison g = debated(scalars({7}));
  g.truth_by_rank = scalars({5});
  g.truth_by_objective = {
      {"sum", scalars({5})}, {"mean", scalars({5})}, {"replicated", scalars({5})}};
  EXPECT_EQ(
      objectives_table(g, {"mean"}),
      "  x          rank 0\n"
      "  observed        7\n"
      "  mean            5   declared: the mean of the ranks' losses; observed is 7/5 x this\n");
}

TEST(ObjectivesTable, SmallTensorsAreShownWhole) {
  GradientComparison g;
  g.input = "w";
  g.layout = "replicate";
  g.truth_full = sample::vector({1, 2});
  g.observed_by_rank = {sample::vector({2, 0}), sample::vector({0, 4})};
  g.observed_full = sample::vector({2, 4});
  g.truth_by_objective = {{"sum", {sample::vector({1, 2})}}};
  EXPECT_EQ(
      objectives_table(g, {"sum"}),
      "  w (replicate)   summed\n"
      "  observed        [2, 4]\n"
      "  sum             [1, 2]   declared: every rank's loss counts; observed is 2 x this\n");
}

TEST(ObjectivesTable, AnInvariantWeightIsComparedOnEachRankWithTheOneTruth) {
  GradientComparison g;
  g.input = "w";
  g.layout = "invariant";
  g.truth_full = Array::scalar(6);
  g.observed_by_rank = scalars({6, 2});
  g.truth_by_objective = {{"sum", scalars({6})}};
  EXPECT_EQ(objectives_table(g, {"sum"}),
            "  w (invariant)   rank 0   rank 1\n"
            "  observed             6        2\n"
            "  sum                  6        6   declared: every rank's loss counts\n");
}

TEST(ObjectivesTable, RanksThatAgreeAsTheyMustAreOneColumn) {
  GradientComparison g;
  g.input = "w";
  g.layout = "replicate";
  g.truth_full = Array({3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  const Array zeros({3, 3}, std::vector<double>(9));
  g.observed_by_rank = {zeros, zeros, zeros};
  g.equal = false;
  g.truth_by_objective = {{"mean", {g.truth_full}}};
  const std::string table = objectives_table(g, {"mean"});
  EXPECT_NE(table.find("  w (replicate), every rank   [0, 1]   [0, 2]   [1, 0]"), std::string::npos)
      << table;
  EXPECT_NE(table.find("(8 of 9 elements shown"), std::string::npos) << table;
  g.observed_by_rank[2] = g.truth_full;
  EXPECT_NE(objectives_table(g, {"mean"}).find("rank 1 [2, 2]"), std::string::npos);
}

TEST(ObjectivesTable, OfLargeTensorsTheElementsFurthestOff) {
  std::vector<double> truth(4096), observed(4096);
  for (std::size_t i = 0; i < 4096; ++i) truth[i] = observed[i] = static_cast<double>(i);
  observed[64 * 3 + 5] += 9;
  observed[64 * 7] = std::nan("");
  GradientComparison g;
  g.input = "x";
  g.layout = "local";
  g.truth_by_rank = {Array({64, 64}, truth), Array({64, 64}, truth)};
  g.observed_by_rank = {Array({64, 64}, truth), Array({64, 64}, observed)};
  g.equal = false;
  g.truth_by_objective = {{"sum", g.truth_by_rank}};
  const std::string table = objectives_table(g, {"sum"});
  EXPECT_NE(table.find("rank 1 [3, 5]   rank 1 [7, 0]\n"), std::string::npos) << table;
  EXPECT_NE(table.find("206             nan\n"), std::string::npos) << table;
  EXPECT_NE(table.find("(8 of 8192 elements shown, those furthest off; --full shows all)\n"),
            std::string::npos)
      << table;
}

TEST(ObjectivesTable, DigitsTellTheDifferenceApart) {
  GradientComparison g = debated(scalars({40.00000001, 60}));
  g.equal = false;
  const std::string table = objectives_table(g, {"sum"});
  EXPECT_NE(table.find("40.00000001"), std::string::npos) << table;
  GradientComparison equal =
      debated(scalars({40.00000001, 60}));  // within the bound: not worth a digit
  EXPECT_EQ(objectives_table(equal, {"sum"}).find("40.0"), std::string::npos);
}

GradientComparison on_ranks(int world_size) {
  GradientComparison g;
  g.input = "x";
  g.layout = "local";
  for (int r = 0; r < world_size; ++r) {
    g.truth_by_rank.emplace_back(Array::scalar(1000 + r));
    g.observed_by_rank.emplace_back(Array::scalar(r == 13 ? 5 : 1000 + r));
  }
  g.equal = false;
  g.truth_by_objective = {{"sum", g.truth_by_rank}};
  return g;
}

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    longest = std::max(longest, end - at);
    at = end + 1;
  }
  return longest;
}

TEST(ObjectivesTable, EightRanksFitWithTheNotesBelow) {
  const std::string table = objectives_table(on_ranks(8), {"sum"});
  EXPECT_LE(longest_line(table), 100u) << table;
  EXPECT_NE(table.find("rank 7\n"), std::string::npos) << table;
  EXPECT_NE(table.find("\n  sum        declared: every rank's loss counts\n"), std::string::npos)
      << table;
}

TEST(ObjectivesTable, OfSixteenRanksThoseFurthestOff) {
  const std::string table = objectives_table(on_ranks(16), {"sum"});
  EXPECT_NE(table.find("rank 13"), std::string::npos) << table;
  EXPECT_NE(table.find("(8 of 16 ranks shown, those furthest off; --full shows all)\n"),
            std::string::npos)
      << table;
  const std::string full = objectives_table(on_ranks(16), {"sum", true});
  EXPECT_NE(full.find("rank 15"), std::string::npos) << full;
  EXPECT_LE(longest_line(full), 100u) << full;
}

TEST(ObjectivesTable, EmptyTensors) {
  GradientComparison g;
  g.input = "x";
  g.layout = "local";
  g.truth_by_rank = {sample::vector({}), sample::vector({1})};
  g.observed_by_rank = {sample::vector({}), std::nullopt};
  g.equal = false;
  g.truth_by_objective = {{"sum", g.truth_by_rank}};
  EXPECT_EQ(objectives_table(g, {"sum"}),
            "  x          rank 0   rank 1\n"
            "  observed       []     none\n"
            "  sum            []      [1]   declared: every rank's loss counts\n");
}

TEST(ObjectivesTable, WithoutRanksTheTruthsAlone) {
  GradientComparison g = debated({});
  EXPECT_EQ(objectives_table(g, {"sum"}),
            "  x            rank 0   rank 1\n"
            "  sum              40       60   declared: every rank's loss counts\n"
            "  mean             20       30\n"
            "  replicated       20       30\n");
}

TEST(ObjectivesTable, OfTheCombinationsByAxisTheDeclaredOneAndThoseThatExplain) {
  GradientComparison g = debated(scalars({20, 30}));
  g.truth_by_objective = {{"sum", scalars({40, 60})},
                          {"dp=sum+tp=sum", scalars({40, 60})},
                          {"dp=mean+tp=sum", scalars({1, 2})},
                          {"dp=mean+tp=replicated", scalars({20, 30})}};
  g.matches = {{"dp=mean+tp=replicated", true}};
  EXPECT_EQ(objectives_table(g, {"dp=mean+tp=sum"}),
            "  x                       rank 0   rank 1\n"
            "  observed                    20       30\n"
            "  sum                         40       60\n"
            "  dp=mean+tp=sum               1        2   declared\n"
            "  dp=mean+tp=replicated       20       30   = observed\n");
}

}  // namespace
}  // namespace distgrad
