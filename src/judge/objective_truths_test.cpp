#include "judge/objective_truths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "judge/closeness.h"
#include "judge/sample_programs.h"

namespace distgrad {
namespace {

using sample::input;
using sample::kLocal;
using sample::scalars;
using sample::values_of;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Kind = Objective::Kind;

Objective objective(Kind kind, int rank = 0) { return {.kind = kind, .rank = rank, .axes = {}}; }

// The simulation of a program with one local scalar input, where rank k's loss has the derivative
// by[k][r] with respect to rank r's value.
Simulation simulated(const SimulateRequest& asked, std::vector<double> losses,
                     const std::vector<std::vector<double>>& by) {
  Simulation s;
  s.losses = std::move(losses);
  s.loss_bounds.assign(s.losses.size(), 0);
  for (const std::vector<double>& weights : asked.weights) {
    std::vector<double> gradient(weights.size(), 0);
    for (std::size_t k = 0; k < weights.size(); ++k)
      for (std::size_t r = 0; r < weights.size(); ++r) gradient[r] += weights[k] * by[k][r];
    s.gradients.push_back({{.input = "x", .parts = scalars(gradient)}});
  }
  s.bounds = {{.input = "x", .parts = scalars(std::vector<double>(s.losses.size(), 0))}};
  s.exact = true;
  return s;
}

SimulateRequest asked_for(Program program, const Objective& declared,
                          Detail detail = Detail::kUsual) {
  SimulateRequest asked;
  asked.program = std::move(program);
  asked.program.inputs = {input("x", kLocal)};
  asked.weights = weights_to_ask(asked.program, declared, detail);
  return asked;
}

std::vector<std::string> names_of(const std::vector<ObjectiveTruth>& truths) {
  std::vector<std::string> all;
  for (const ObjectiveTruth& t : truths) all.push_back(t.name);
  return all;
}

const ObjectiveTruth& named(const std::vector<ObjectiveTruth>& truths, const std::string& name) {
  for (const ObjectiveTruth& t : truths)
    if (t.name == name) return t;
  throw std::out_of_range(name);
}

TEST(WeightsToAsk, InSmallWorldsTheDeclaredAndEachRank) {
  const auto asked = asked_for(sample::world(3), objective(Kind::kMean));
  ASSERT_EQ(asked.weights.size(), 4);
  EXPECT_EQ(asked.weights[0], truth_weights(asked.program, objective(Kind::kMean)));
  EXPECT_THAT(asked.weights[3], ElementsAre(0, 0, 1));
  // Replicated is rank 0's loss: not asked twice.
  EXPECT_EQ(asked_for(sample::world(3), objective(Kind::kReplicated)).weights.size(), 3);
}

TEST(WeightsToAsk, InLargeWorldsAFewRows) {
  EXPECT_LE(asked_for(sample::world(512), objective(Kind::kSum)).weights.size(), 5);
  EXPECT_LE(asked_for(sample::world(512), objective(Kind::kReplicated)).weights.size(), 5);
  EXPECT_EQ(asked_for(sample::world(16), objective(Kind::kSum), Detail::kEveryRank).weights.size(),
            17);
  EXPECT_LE(asked_for(sample::world(512), objective(Kind::kSum), Detail::kEveryRank).weights.size(),
            5);
}

TEST(WeightsToAsk, ForLargeTensorsTheDeclaredAlone) {
  Program program = sample::world(4);
  program.inputs = {input("x", kLocal)};
  program.inputs[0].value = RandomSpec{.shape = {std::int64_t{8'000'000}}};
  EXPECT_EQ(weights_to_ask(program, objective(Kind::kSum)).size(), 1);
  // What a replicated objective's validity needs is asked all the same.
  EXPECT_EQ(weights_to_ask(program, objective(Kind::kReplicated)).size(), 3);
}

TEST(ObjectiveTruths, EveryObjectiveIsACombinationOfTheRanksLosses) {
  const auto asked = asked_for(sample::world(3), objective(Kind::kSum));
  const auto s = simulated(asked, {1, 2, 3}, {{1, 0, 0}, {10, 20, 0}, {100, 200, 300}});
  const auto truths = objective_truths(asked, s);
  EXPECT_THAT(names_of(truths), ElementsAre("sum", "mean", "rank:0", "rank:1", "rank:2"));
  const auto at = [&](const std::string& name, std::size_t rank) {
    return (*named(truths, name).gradients[0].parts[rank])[0];
  };
  EXPECT_EQ(at("sum", 0), 111);
  EXPECT_DOUBLE_EQ(at("mean", 1), 220 / 3.0);
  EXPECT_EQ(at("rank:1", 1), 20);
}

TEST(ObjectiveTruths, BoundsAreZeroForExactFactorsAndARoundingForAThird) {
  const auto asked = asked_for(sample::world(3), objective(Kind::kSum));
  const auto s = simulated(asked, {1, 2, 3}, {{3, 0, 0}, {3, 0, 0}, {3, 0, 0}});
  const auto truths = objective_truths(asked, s);
  EXPECT_THAT(named(truths, "sum").bounds[0], IsEmpty());  // the simulation's own hold
  EXPECT_EQ(named(truths, "rank:1").bounds[0][0][0], 0);
  // 3 · 3 · (1/3) is a number of few bits, but what a rank computes need not be.
  const double bound = named(truths, "mean").bounds[0][0][0];
  EXPECT_GT(bound, 3 * 0x1p-53);
  EXPECT_LT(bound, 1e-13);
}

TEST(ObjectiveTruths, BoundsGrowWithTheWeights) {
  const auto asked = asked_for(sample::world(4), objective(Kind::kReplicated));
  auto s = simulated(asked, {5, 5, 5, 5}, std::vector<std::vector<double>>(4, {8, 8, 8, 8}));
  s.bounds = {{.input = "x", .parts = scalars(std::vector<double>(4, 0.25))}};
  s.exact = false;
  const auto truths = objective_truths(asked, s);
  EXPECT_GE(named(truths, "sum").bounds[0][0][0], 4 * 0.25)
      << "the same rounding, on four times the value";
  EXPECT_GE(named(truths, "mean").bounds[0][0][0], 0.25);
}

TEST(ObjectiveTruths, ReplicatedIsDefinedWhereLossesAndGradientsAgree) {
  const auto asked = asked_for(sample::world(3), objective(Kind::kSum));
  const std::vector<std::vector<double>> same = {{1, 2, 3}, {1, 2, 3}, {1, 2, 3}};
  EXPECT_THAT(names_of(objective_truths(asked, simulated(asked, {5, 5, 5}, same))),
              Contains("replicated"));
  EXPECT_THAT(names_of(objective_truths(asked, simulated(asked, {5, 5, 6}, same))),
              Not(Contains("replicated")));
  const std::vector<std::vector<double>> other = {{1, 2, 3}, {1, 2, 3}, {1, 2, 4}};
  EXPECT_THAT(names_of(objective_truths(asked, simulated(asked, {5, 5, 5}, other))),
              Not(Contains("replicated")));
}

TEST(ObjectiveTruths, LossesThatDifferByRoundingAgree) {
  const auto asked = asked_for(sample::world(2), objective(Kind::kSum));
  auto s = simulated(asked, {0.3, 0.1 + 0.2}, {{1, 2}, {1, 2}});
  s.loss_bounds = {1e-16, 1e-16};
  s.exact = false;
  EXPECT_THAT(names_of(objective_truths(asked, s)), Contains("replicated"));
}

TEST(ObjectiveTruths, ALargeWorldSeesDisagreementWithoutARowForEachRank) {
  const auto asked = asked_for(sample::world(16), objective(Kind::kReplicated));
  ASSERT_LT(asked.weights.size(), 16);
  std::vector<std::vector<double>> by(16, std::vector<double>(16, 1));
  const std::vector<double> losses(16, 7);
  EXPECT_THAT(names_of(objective_truths(asked, simulated(asked, losses, by))),
              Contains("replicated"));
  EXPECT_FALSE(check_replicated(asked, objective(Kind::kReplicated), simulated(asked, losses, by)));
  // Two ranks off by opposite amounts: the plain sum would not show it.
  by[3][5] = 2;
  by[11][5] = 0;
  EXPECT_THAT(names_of(objective_truths(asked, simulated(asked, losses, by))),
              Not(Contains("replicated")));
  const auto invalid =
      check_replicated(asked, objective(Kind::kReplicated), simulated(asked, losses, by));
  ASSERT_TRUE(invalid);
  EXPECT_THAT(invalid->message, HasSubstr("x on rank 5"));
}

TEST(ObjectiveTruths, WithTheDeclaredRowAloneOnlyTheDeclaredIsKnown) {
  auto asked = asked_for(sample::world(2), objective(Kind::kSum));
  asked.weights.resize(1);
  const auto s = simulated(asked, {1, 2}, {{1, 2}, {3, 4}});
  EXPECT_THAT(names_of(objective_truths(asked, s)), ElementsAre("sum", "mean"));
}

TEST(ObjectiveTruths, ByMeshAxis) {
  const Objective declared{
      .kind = Kind::kByAxis,
      .rank = 0,
      .axes = {{"dp", Objective::Axis::kMean}, {"tp", Objective::Axis::kReplicated}}};
  const auto asked = asked_for(sample::mesh({{"dp", 2}, {"tp", 2}}), declared);
  const std::vector<std::vector<double>> by = {
      {2, 0, 0, 0}, {2, 0, 0, 0}, {0, 0, 4, 4}, {0, 0, 4, 4}};
  const auto truths = objective_truths(asked, simulated(asked, {1, 1, 9, 9}, by));
  EXPECT_THAT(names_of(truths), Contains("dp=mean+tp=replicated"));
  EXPECT_THAT(names_of(truths), Contains("dp=sum+tp=replicated"));
  EXPECT_THAT(names_of(truths), Not(Contains("replicated")));
  EXPECT_EQ((*named(truths, "dp=sum+tp=replicated").gradients[0].parts[2])[0], 4);
  EXPECT_EQ((*named(truths, "dp=mean+tp=replicated").gradients[0].parts[2])[0], 2);
}

TEST(CheckReplicated, ShowsTheLossesThatDiffer) {
  const Objective replicated = objective(Kind::kReplicated);
  const auto asked = asked_for(sample::world(3), replicated);
  const std::vector<std::vector<double>> same(3, {1, 2, 3});
  EXPECT_FALSE(check_replicated(asked, replicated, simulated(asked, {4, 4, 4}, same)));
  const auto invalid = check_replicated(asked, replicated, simulated(asked, {4, 4, 5}, same));
  ASSERT_TRUE(invalid);
  EXPECT_EQ(invalid->pointer, "/objective");
  EXPECT_THAT(invalid->message, HasSubstr("rank 0: 4, rank 1: 4, rank 2: 5"));
}

TEST(CheckReplicated, ShowsTheGradientsThatDiffer) {
  const Objective replicated = objective(Kind::kReplicated);
  const auto asked = asked_for(sample::world(3), replicated);
  const auto invalid = check_replicated(
      asked, replicated, simulated(asked, {4, 4, 4}, {{1, 2, 3}, {1, 2, 3}, {1, 8, 3}}));
  ASSERT_TRUE(invalid);
  EXPECT_THAT(invalid->message,
              HasSubstr("that of x on rank 1 is 2 by rank 0's loss, 8 by rank 2's"));
}

TEST(CheckReplicated, AsksNothingOfOtherObjectives) {
  const auto asked = asked_for(sample::world(2), objective(Kind::kSum));
  EXPECT_FALSE(
      check_replicated(asked, objective(Kind::kSum), simulated(asked, {4, 5}, {{1, 2}, {3, 4}})));
}

TEST(HasFewBits, TellsIntegersFromThirds) {
  EXPECT_TRUE(has_few_bits(40, 53));
  EXPECT_TRUE(has_few_bits(-0.375, 53));
  EXPECT_TRUE(has_few_bits(0, 53));
  EXPECT_FALSE(has_few_bits(1 / 3.0, 53));
  EXPECT_FALSE(has_few_bits(0.1, 53));
  EXPECT_TRUE(has_few_bits(37, 8));
  EXPECT_FALSE(has_few_bits(rounded_to(DType::kBFloat16, 1 / 3.0), 8));
}

}  // namespace
}  // namespace distgrad
