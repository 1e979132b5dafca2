#include "judge/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "judge/dispute.h"
#include "judge/objective_truths.h"
#include "judge/sample_programs.h"

namespace distgrad {
namespace {

using sample::input;
using sample::kInvariant;
using sample::kLocal;
using sample::kReplicate;
using sample::scalars;
using sample::shard;
using sample::values_of;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// One case with one input: its truth, what the ranks hold, and all that surrounds them.
struct Sample {
  Scenario scenario;
  Case which;
  SimulateRequest asked;
  Simulation simulation;
  DistributedRun run;

  Sample(Program program, Input only, std::vector<std::optional<Array>> truth,
         const GradientByRank& observed) {
    which.subject = "torch_nn";
    asked.program = std::move(program);
    asked.program.inputs = {std::move(only)};
    asked.weights = {truth_weights(asked.program, which.objective)};
    const auto n = static_cast<std::size_t>(asked.program.world_size);
    simulation.losses.assign(n, 1);
    simulation.loss_bounds.assign(n, 0);
    Gradient bound{.input = "x", .parts = {}};
    for (const auto& part : truth)
      bound.parts.emplace_back(Array(part->shape(), std::vector<double>(part->values().size(), 0)));
    simulation.gradients = {{{.input = "x", .parts = std::move(truth)}}};
    simulation.bounds = {bound};
    simulation.exact = true;
    run.ranks.resize(n);
    for (std::size_t r = 0; r < n; ++r) {
      run.ranks[r].loss = 1;
      run.ranks[r].gradients = {observed[r]};
    }
  }

  void bound_all_by(double bound) {
    simulation.exact = false;
    for (auto& part : simulation.bounds[0].parts)
      part = Array(part->shape(), std::vector<double>(part->values().size(), bound));
  }
  CaseComparison all() {
    which.scenario = &scenario;
    return compare(which, asked, simulation, &run);
  }
  GradientComparison compared() { return all().gradients[0]; }
  std::string dispute() {
    const CaseComparison comparison = all();
    return distgrad::dispute(which, asked, simulation, run, comparison);
  }
};

Sample local(std::vector<double> truth, std::vector<double> observed) {
  const int n = static_cast<int>(truth.size());
  return {sample::world(n), input("x", kLocal), scalars(truth), scalars(observed)};
}

TEST(Compare, LocalGradientsOnEachRank) {
  const GradientComparison g = local({40, 60, 80}, {20, 60, 40}).compared();
  EXPECT_FALSE(g.equal);
  EXPECT_EQ(g.layout, "local");
  EXPECT_EQ(g.max_abs_error, 40);
  EXPECT_EQ(g.max_rel_error, 0.5);
  EXPECT_EQ(g.bound, 0);
  EXPECT_EQ(g.first_difference->rank, 0);
  EXPECT_THAT(g.first_difference->index, IsEmpty());
  EXPECT_THAT(g.differing_ranks, ElementsAre(0, 2));
  EXPECT_EQ(g.truth_by_rank.size(), 3);
  EXPECT_FALSE(g.truth_full);
  EXPECT_FALSE(g.observed_full);
  EXPECT_TRUE(local({40, 60, 80}, {40, 60, 80}).compared().equal);
}

TEST(Compare, OtherObjectivesThatAreLeftOutChangeNothingElse) {
  for (const bool right : {true, false}) {
    Sample s = local({40, 60, 80}, {40, right ? 60.0 : 30.0, 80});
    const GradientComparison all = s.compared();
    const GradientComparison own =
        compare(s.which, s.asked, s.simulation, &s.run, OtherObjectives::kLeftOut).gradients[0];
    EXPECT_GT(all.matches.size(), 1U);
    EXPECT_THAT(own.matches, IsEmpty());
    EXPECT_THAT(own.truth_by_objective, IsEmpty());
    EXPECT_EQ(own.equal, right);
    EXPECT_EQ(own.equal, all.equal);
    EXPECT_EQ(own.max_abs_error, all.max_abs_error);
    EXPECT_EQ(own.differing_ranks, all.differing_ranks);
  }
}

// Ranks that say "as expected" hold the truth itself, which is not read where no bound is.
TEST(Compare, TheTruthsOwnMemoryIsComparedAsACopyOfItWouldBe) {
  const std::vector<double> values = {1, -0.0, kNaN, 3};
  const Array truth({4}, values), copy({4}, values), wrong({4}, {1, -0.0, kNaN, -3});
  for (const double bound : {-1.0, 0.0, 0.5}) {  // -1: none was asked for
    const auto compared = [&](const Array& of_rank_0) {
      Sample s(sample::world(3), input("x", kLocal), {truth, truth, truth},
               {of_rank_0, wrong, truth});
      if (bound < 0)
        s.simulation.bounds.clear();
      else
        s.bound_all_by(bound);
      return s.compared();
    };
    const GradientComparison own = compared(truth), other = compared(copy);
    EXPECT_FALSE(own.equal);
    EXPECT_THAT(own.differing_ranks, ElementsAre(1));
    EXPECT_EQ(own.differing_ranks, other.differing_ranks);
    EXPECT_EQ(own.first_difference->index, other.first_difference->index);
    EXPECT_EQ(own.max_abs_error, other.max_abs_error);
    EXPECT_EQ(own.bound, other.bound);
  }
  Sample right(sample::world(3), input("x", kLocal), {truth, truth, truth}, {truth, copy, truth});
  EXPECT_TRUE(right.compared().equal);
  right.scenario.tolerance = {Tolerance::Kind::kExplicit, 0.5, 0.25};
  EXPECT_EQ(right.compared().bound, 1.75) << "the largest element's";
}

TEST(Compare, TheFirstDifferenceIsRankMajorAndRowMajor) {
  const Array truth = sample::matrix(2, 2, {1, 2, 3, 4}),
              wrong = sample::matrix(2, 2, {1, 2, 0, 0});
  Sample s(sample::world(3), input("x", kLocal), {truth, truth, truth}, {truth, wrong, wrong});
  const GradientComparison g = s.compared();
  EXPECT_EQ(g.first_difference->rank, 1);
  EXPECT_THAT(g.first_difference->index, ElementsAre(1, 0));
  EXPECT_THAT(g.differing_ranks, ElementsAre(1, 2));
}

TEST(Compare, ADerivedBoundOfZeroAsksForTheSameValue) {
  EXPECT_FALSE(local({1, 1}, {1, std::nextafter(1.0, 2)}).compared().equal);
  EXPECT_TRUE(local({0, kNaN}, {-0.0, kNaN}).compared().equal);
  EXPECT_TRUE(local({kInf, 1}, {kInf, 1}).compared().equal);
  EXPECT_FALSE(local({kInf, 1}, {-kInf, 1}).compared().equal);
  EXPECT_FALSE(local({1, 1}, {kNaN, 1}).compared().equal);
  EXPECT_FALSE(local({kNaN, 1}, {0, 1}).compared().equal);
}

TEST(Compare, ADerivedBoundIsAbsoluteAndByElement) {
  Sample s = local({1, 1}, {1.25, 1});
  s.bound_all_by(0.25);
  EXPECT_TRUE(s.compared().equal);
  EXPECT_EQ(s.compared().max_abs_error, 0.25);
  EXPECT_EQ(s.compared().bound, 0.25);
  s.bound_all_by(0.2);
  EXPECT_FALSE(s.compared().equal);
  EXPECT_EQ(s.compared().bound, 0.2);
}

TEST(Compare, TheToleranceOfTheFileReplacesTheDerivedOne) {
  Sample s = local({1, 1}, {1.25, 1});
  s.scenario.tolerance = {Tolerance::Kind::kExplicit, 0.2, 0.05};
  EXPECT_TRUE(s.compared().equal);
  s.scenario.tolerance.atol = 0.04;
  EXPECT_FALSE(s.compared().equal);
  s.bound_all_by(1);
  EXPECT_FALSE(s.compared().equal);
  s.scenario.tolerance = {Tolerance::Kind::kEqual, 0, 0};
  EXPECT_FALSE(s.compared().equal);
}

TEST(Compare, AMissingGradientDiffersUnlessTheTruthIsZero) {
  Sample s(sample::world(2), input("x", kLocal), scalars({3, 0}), {Array::scalar(3), std::nullopt});
  EXPECT_TRUE(s.compared().equal);
  EXPECT_FALSE(s.compared().observed_by_rank[1]);
  Sample t(sample::world(2), input("x", kLocal), scalars({3, 4}), {Array::scalar(3), std::nullopt});
  EXPECT_FALSE(t.compared().equal);
  EXPECT_EQ(t.compared().max_abs_error, 4);
  EXPECT_THAT(t.compared().differing_ranks, ElementsAre(1));
  // No tolerance makes a gradient out of none.
  t.scenario.tolerance = {Tolerance::Kind::kExplicit, 0, 100};
  EXPECT_FALSE(t.compared().equal);
  Sample nan(sample::world(1), input("x", kLocal), scalars({kNaN}), {std::nullopt});
  EXPECT_FALSE(nan.compared().equal);
}

TEST(Compare, AGradientOfAnotherShapeDiffers) {
  Sample s(sample::world(2), input("x", kLocal), {sample::vector({1, 2}), sample::vector({1, 2})},
           {sample::vector({1, 2}), sample::matrix(1, 2, {1, 2})});
  const GradientComparison g = s.compared();
  EXPECT_FALSE(g.equal);
  EXPECT_EQ(g.first_difference->rank, 1);
  EXPECT_EQ(g.max_abs_error, kInf);
}

TEST(Compare, AReplicatedGradientIsSummedFirst) {
  Sample s(sample::world(3), input("x", kReplicate), {Array::scalar(6)}, scalars({1, 2, 3}));
  const GradientComparison g = s.compared();
  EXPECT_TRUE(g.equal);
  EXPECT_THAT(values_of(*g.observed_full), ElementsAre(6));
  EXPECT_THAT(values_of(*g.truth_full), ElementsAre(6));
  EXPECT_THAT(g.truth_by_rank, IsEmpty());
  EXPECT_THAT(values_of(*g.observed_by_rank[2]), ElementsAre(3));
}

TEST(Compare, AReplicatedGradientWithoutOneShareIsJudgedByTheSum) {
  Sample s(sample::world(3), input("x", kReplicate), {Array::scalar(6)},
           {Array::scalar(1), Array::scalar(5), std::nullopt});
  EXPECT_TRUE(s.compared().equal);
  s.run.ranks[1].gradients = {Array::scalar(4)};
  EXPECT_FALSE(s.compared().equal);
}

TEST(Compare, SummingInexactGradientsHereCostsARounding) {
  const double sum = 0.1 + 0.2, off = std::nextafter(sum, 1);
  Sample s(sample::world(2), input("x", kReplicate), {Array::scalar(off)}, scalars({0.1, 0.2}));
  EXPECT_FALSE(s.compared().equal);
  s.bound_all_by(1e-20);  // not exact, though by next to nothing
  EXPECT_TRUE(s.compared().equal);
  Sample own(sample::world(1), input("x", kLocal), {Array::scalar(off)}, scalars({sum}));
  own.bound_all_by(1e-20);
  EXPECT_FALSE(own.compared().equal);
}

TEST(Compare, AnInvariantGradientOnEachRank) {
  Sample s(sample::world(3), input("x", kInvariant), {Array::scalar(6)}, scalars({6, 5, 6}));
  const GradientComparison g = s.compared();
  EXPECT_FALSE(g.equal);
  EXPECT_THAT(g.differing_ranks, ElementsAre(1));
  EXPECT_EQ(g.first_difference->rank, 1);
  EXPECT_FALSE(g.observed_full);
}

TEST(Compare, AShardedGradientJoined) {
  Sample s(sample::world(3), input("x", shard(0)), {sample::vector({1, 2, 3, 4})},
           {sample::vector({1, 2}), sample::vector({3, 5}), sample::vector({})});
  const GradientComparison g = s.compared();
  EXPECT_FALSE(g.equal);
  EXPECT_EQ(g.layout, "shard:0");
  EXPECT_EQ(g.first_difference->rank, 1);
  EXPECT_THAT(g.first_difference->index, ElementsAre(3));
  EXPECT_THAT(g.differing_ranks, ElementsAre(1));
  EXPECT_THAT(values_of(*g.observed_full), ElementsAre(1, 2, 3, 5));
}

TEST(Compare, AShardWithoutGradientDiffersOnlyWhereItsTruthIsNotZero) {
  Sample s(sample::world(2), input("x", shard(0)), {sample::vector({1, 0})},
           {sample::vector({1}), std::nullopt});
  EXPECT_TRUE(s.compared().equal);
  Sample t(sample::world(2), input("x", shard(0)), {sample::vector({1, 2})},
           {sample::vector({1}), std::nullopt});
  EXPECT_THAT(t.compared().differing_ranks, ElementsAre(1));
}

TEST(Compare, OfPartsBySynchronisedCoordinateTheOneThatDiffersIsShown) {
  Input x = input("x", {{"dp", kReplicate}, {"tp", kReplicate}});
  x.sync = {{"dp", Input::Sync::kSum}};
  Sample s(sample::mesh({{"dp", 2}, {"tp", 2}}), x, {Array::scalar(10)}, scalars({4, 6, 4, 7}));
  const GradientComparison g = s.compared();
  EXPECT_FALSE(g.equal);
  EXPECT_THAT(values_of(*g.observed_full), ElementsAre(11));
  EXPECT_THAT(g.differing_ranks, ElementsAre(2, 3));
}

TEST(Compare, WhatAnotherInputsSyncWouldDivideIsDividedHere) {
  Sample s(sample::world(2), input("x", kLocal), scalars({1, 2}), scalars({2, 4}));
  Input w = input("w", kReplicate);
  w.requires_grad = false;  // only its sync matters here
  w.sync = {{"", Input::Sync::kMean}};
  s.asked.program.inputs.push_back(w);
  s.which.objective.kind = Objective::Kind::kMean;
  const GradientComparison g = s.compared();
  EXPECT_TRUE(g.equal);
  EXPECT_THAT(values_of(*g.observed_by_rank[1]), ElementsAre(2));
}

TEST(Compare, EveryObjectiveThatIsDefinedIsMatched) {
  Sample s = local({40, 60}, {20, 30});
  s.asked.weights = weights_to_ask(s.asked.program, s.which.objective);
  s.simulation.losses = {25, 25};
  for (RankResult& rank : s.run.ranks) rank.loss = 25;
  for (int k = 0; k < 2; ++k)
    s.simulation.gradients.push_back({{.input = "x", .parts = scalars({20, 30})}});
  const GradientComparison g = s.compared();
  EXPECT_THAT(g.matches,
              ElementsAre(Pair("sum", false), Pair("mean", true), Pair("replicated", true),
                          Pair("rank:0", true), Pair("rank:1", true)));
  ASSERT_EQ(g.truth_by_objective.size(), 5);
  EXPECT_THAT(values_of(*g.truth_by_objective[1].second[1]), ElementsAre(30));
}

TEST(Compare, AMeanOfThreeExactSumsMatchesToARounding) {
  Sample s = local({1, 1, 1}, {1 / 3.0, std::nextafter(1 / 3.0, 1), 1 / 3.0});
  s.asked.weights = weights_to_ask(s.asked.program, s.which.objective);
  for (int k = 0; k < 3; ++k) {
    std::vector<double> own(3, 0);
    own[static_cast<std::size_t>(k)] = 1;
    s.simulation.gradients.push_back({{.input = "x", .parts = scalars(own)}});
  }
  const auto matches = s.compared().matches;
  EXPECT_THAT(matches[1], Pair("mean", true));
  s.run.ranks[1].gradients = {Array::scalar(1 / 3.0 + 1e-12)};
  EXPECT_THAT(s.compared().matches[1], Pair("mean", false));
}

TEST(Compare, WithANaNAmongMaxsOperandsOnlyForwardValuesAreJudged) {
  Sample s = local({1, 2}, {5, 6});
  s.simulation.forward_only = "a NaN among the operands of max";
  EXPECT_TRUE(s.compared().equal);
  EXPECT_THAT(s.compared().matches, IsEmpty());
  s.run.ranks[1].loss = 2;
  EXPECT_TRUE(s.all().forward);
}

TEST(Compare, WithoutARunThereIsTheTruthAlone) {
  Sample s = local({1, 2}, {1, 2});
  const CaseComparison c = compare(s.which, s.asked, s.simulation, nullptr);
  EXPECT_TRUE(c.equal());
  EXPECT_THAT(c.gradients[0].observed_by_rank, IsEmpty());
  EXPECT_THAT(c.gradients[0].matches, IsEmpty());
  EXPECT_EQ(c.gradients[0].truth_by_rank.size(), 2);
  EXPECT_THAT(c.distributed_losses, IsEmpty());
}

TEST(Compare, LargeTensorsAreNotCopied) {
  const auto n = std::size_t{1} << 20;
  const Array truth = sample::vector(std::vector<double>(n, 1));
  const Array observed = sample::vector(std::vector<double>(n, 1));
  Sample s(sample::world(1), input("x", kLocal), {truth}, {observed});
  const GradientComparison g = s.compared();
  EXPECT_EQ(g.observed_by_rank[0]->values().data(), observed.values().data());
  EXPECT_EQ(g.truth_by_objective[0].second[0]->values().data(), truth.values().data());
}

// --- Forward values ---

Sample with_steps() {
  Sample s = local({1, 2}, {1, 2});
  Step expression{"z", "", Expression{"x", ""}};
  s.asked.program.steps = {sample::all_reduce("y"), expression, sample::all_reduce("v")};
  s.simulation.steps = {{"y", {Array::scalar(3), Array::scalar(3)}, {}},
                        {"v", {sample::vector({1, 2}), sample::vector({1, 2})}, {}}};
  for (RankResult& rank : s.run.ranks) rank.steps = {Array::scalar(3), sample::vector({1, 2})};
  return s;
}

TEST(Forward, EqualStepsAndLossesAreNoDifference) { EXPECT_FALSE(with_steps().all().forward); }

TEST(Forward, TheFirstStepThatDiffersIsNamed) {
  Sample s = with_steps();
  s.run.ranks[1].steps[1] = sample::vector({1, 7});
  s.run.ranks[1].loss = 9;
  const CaseComparison c = s.all();
  ASSERT_TRUE(c.forward);
  EXPECT_EQ(c.forward->step, "v");
  EXPECT_EQ(c.forward->rank, 1);
  EXPECT_THAT(c.forward->index, ElementsAre(1));
  EXPECT_THAT(c.forward->ranks, ElementsAre(1));
  EXPECT_FALSE(c.equal());
  EXPECT_TRUE(c.gradients_equal());
}

TEST(Forward, ValuesAreFoundByNameWhereTheSimulationHasMoreSteps) {
  Sample s = with_steps();
  s.simulation.steps.insert(s.simulation.steps.begin() + 1,
                            {"z", {Array::scalar(-1), Array::scalar(-1)}, {}});
  EXPECT_FALSE(s.all().forward);
}

TEST(Forward, BoundsAndTheLossCount) {
  Sample s = with_steps();
  s.run.ranks[0].loss = 1.5;
  ASSERT_TRUE(s.all().forward);
  EXPECT_EQ(s.all().forward->step, "");
  s.simulation.loss_bounds = {0.5, 0};
  EXPECT_FALSE(s.all().forward);
  s.run.ranks[0].steps[0] = Array::scalar(3.25);
  EXPECT_TRUE(s.all().forward);
  s.simulation.steps[0].bound = {Array::scalar(0.25), Array::scalar(0)};
  EXPECT_FALSE(s.all().forward);
}

// --- The file's truth and one device ---

void pin_truth(Sample& s, std::variant<Array, std::vector<Array>, Expression> value,
               const std::vector<double>& evaluated) {
  s.asked.program.truth = {{"x", "/truth/x", std::move(value)}};
  s.simulation.file_truth = {{.input = "x", .parts = scalars(evaluated)}};
}

TEST(Truth, AFigureMustBeTheProgramsGradient) {
  Sample s = local({40, 60}, {40, 60});
  pin_truth(s, Array::scalar(0), {40, 60});
  EXPECT_FALSE(s.all().truth);
  pin_truth(s, Array::scalar(0), {80, 120});
  const auto d = s.all().truth;
  ASSERT_TRUE(d);
  EXPECT_EQ(d->input, "x");
  EXPECT_EQ(d->rank, 0);
  EXPECT_EQ(d->factor, 0.5);
}

TEST(Truth, AFigureMayBeTheDecimalOfAValueOfTheDtype) {
  Sample s = local({static_cast<double>(0.1F), 1}, {static_cast<double>(0.1F), 1});
  s.asked.program.dtype = DType::kFloat32;
  pin_truth(s, Array::scalar(0), {0.1, 1});
  EXPECT_FALSE(s.all().truth);
  pin_truth(s, Array::scalar(0), {0.1001, 1});
  EXPECT_TRUE(s.all().truth);
}

TEST(Truth, AClosedFormMayRoundAFigureMayNot) {
  Sample s = local({1, 1}, {1, 1});
  pin_truth(s, Expression{"3 * (1 / 3)", ""}, {std::nextafter(1, 2), 1});
  EXPECT_FALSE(s.all().truth);
  pin_truth(s, Array::scalar(0), {std::nextafter(1, 2), 1});
  EXPECT_TRUE(s.all().truth);
}

TEST(Truth, WhatAnOverrideMakesInapplicableIsNotCompared) {
  Sample s = local({40, 60}, {40, 60});
  pin_truth(s, Array::scalar(0), {1, 1});
  s.which.world_size_overridden = true;
  EXPECT_FALSE(s.all().truth);
  pin_truth(s, Expression{"1", ""}, {1, 1});
  EXPECT_TRUE(s.all().truth);
  s.which.objective_overridden = true;
  EXPECT_FALSE(s.all().truth);
}

TEST(OneDevice, ItsLossIsTheObjective) {
  Sample s = local({1, 2}, {1, 2});
  s.simulation.losses = {3, 4};
  s.run.ranks[0].loss = 3;
  s.run.ranks[1].loss = 4;
  s.simulation.single_loss = 7;
  s.simulation.single_gradients = s.simulation.gradients[0];
  EXPECT_FALSE(s.all().program);
  s.simulation.single_loss = 14;
  const auto d = s.all().program;
  ASSERT_TRUE(d);
  EXPECT_EQ(d->input, "");
  EXPECT_EQ(d->simulated[0], 7);
}

TEST(OneDevice, ItsGradientsAreTheTruth) {
  Sample s = local({1, 2}, {1, 2});
  s.simulation.single_loss = 2;
  s.simulation.single_gradients = {{.input = "x", .parts = scalars({2, 4})}};
  const auto d = s.all().program;
  ASSERT_TRUE(d);
  EXPECT_EQ(d->input, "x");
  EXPECT_EQ(d->rank, 0);
  EXPECT_EQ(d->factor, 0.5);
}

TEST(OneDevice, IsComparedInFloat64WhateverTheDtype) {
  Sample s = local({1, 2}, {1, 2});
  s.asked.program.dtype = DType::kBFloat16;
  s.bound_all_by(0.01);
  s.simulation.single_loss = 2;
  s.simulation.single_gradients = {{.input = "x", .parts = scalars({1.001, 2})}};
  EXPECT_TRUE(s.all().program);
  s.simulation.single_gradients = {{.input = "x", .parts = scalars({std::nextafter(1, 2), 2})}};
  EXPECT_FALSE(s.all().program);
}

// Code that holds something fixed, and whose gradients are those of that program.
TEST(Dispute, OfWhatIsHeldFixed) {
  Sample s = local({40, 60}, {20, 60});
  s.simulation.held = {{.input = "x", .parts = scalars({20, 60})}};
  s.simulation.cuts = {"detach() in layer.py:12"};
  EXPECT_THAT(s.dispute(),
              testing::AllOf(testing::HasSubstr(
                                 "x on rank 0: the gradient is 20, the slope of the objective 40"),
                             testing::HasSubstr("detach() in layer.py:12")));
}

TEST(Dispute, IsNoExcuseForAnotherMistake) {
  Sample s = local({40, 60}, {10, 60});
  s.simulation.held = {{.input = "x", .parts = scalars({20, 60})}};
  EXPECT_EQ(s.dispute(), "");
  const IntendedTruth meant = as_intended(s.asked, s.simulation);
  EXPECT_EQ((*meant.simulation.gradients[0][0].parts[0])[0], 20);
}

TEST(Dispute, OfAKinkAloneNotOfOtherElements) {
  Sample s = local({40, 60}, {20, 60});
  s.simulation.undecided_elements = {{"x", 0, 0, "a kink"}};
  EXPECT_THAT(s.dispute(), testing::HasSubstr("a kink"));
  Sample other = local({40, 60}, {20, 30});
  other.simulation.undecided_elements = {{"x", 0, 0, "a kink"}};
  EXPECT_EQ(other.dispute(), "");
}

TEST(Dispute, NoneWhereAllIsRightOrForwardDiffers) {
  Sample right = local({40, 60}, {40, 60});
  EXPECT_EQ(right.dispute(), "");
  Sample forward = local({40, 60}, {20, 60});
  forward.simulation.undecided_elements = {{"x", 0, 0, "a kink"}};
  forward.run.ranks[1].loss = 2;
  EXPECT_EQ(forward.dispute(), "");
}

}  // namespace
}  // namespace distgrad
