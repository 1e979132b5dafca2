#include "diagnose/diagnose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "diagnose/linear_world.h"

namespace distgrad {
namespace {

using sample::LinearWorld;
using sample::scalars;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<std::string> rules(const std::vector<Finding>& findings) {
  std::vector<std::string> names;
  for (const Finding& f : findings) names.push_back(f.rule);
  return names;
}

const Finding& named(const std::vector<Finding>& findings, const std::string& rule) {
  for (const Finding& f : findings)
    if (f.rule == rule) return f;
  throw std::out_of_range("no finding " + rule);
}

std::vector<Finding> diagnosis(LinearWorld& world, const GradientByRank& held) {
  return diagnose(world.observed(held), world.replay());
}

// Three ranks with unlike values and losses: no explanation passes for another by chance.
LinearWorld unlike() {
  LinearWorld world({2, 3, 5}, {7, 11, 13});
  world.reduce("y");
  return world;
}

// Like pytorch#58005: every rank computes the same loss of one sum.
LinearWorld alike() {
  LinearWorld world({2, 3, 5}, {1, 1, 1});
  world.reduce("y");
  return world;
}

// Where a replay's own bounds are wide, a value between the truth and what the hypothesis gives is
// within them. Only what leaves a quarter of the truth's error at most explains it.
TEST(Diagnose, WhatIsHardlyNearerToAHypothesisThanToTheTruthIsNotNamed) {
  const auto diagnosed = [](double part_of_the_way) {
    LinearWorld world({1, 1, 1}, {10, 11, 12});
    world.reduce("y", ReduceOp::kAvg);
    const auto right = world.held_with({}), wrong = world.held_with({{"y", "identity"}});
    std::vector<double> between;
    for (std::size_t r = 0; r < right.size(); ++r)
      between.push_back((*right[r])[0] + part_of_the_way * ((*wrong[r])[0] - (*right[r])[0]));
    world.bound = 0.05;
    const Replay widely = [&](const SimulateRequest& request) {
      Simulation s = world.simulate(request);
      if (!request.rules.empty())
        for (auto& part : s.bounds[0].parts) part = Array::scalar(0.5);
      return s;
    };
    return rules(diagnose(world.observed(scalars(between)), widely));
  };
  EXPECT_THAT(diagnosed(1), Contains("identity-backward"));
  EXPECT_THAT(diagnosed(0.9), Contains("identity-backward"));
  EXPECT_THAT(diagnosed(0.7), Not(Contains("identity-backward")));
}

TEST(Diagnose, AMatchHasNoFinding) {
  LinearWorld world = unlike();
  EXPECT_THAT(diagnosis(world, world.held_with({})), IsEmpty());
  EXPECT_EQ(world.replays, 0);
}

TEST(Diagnose, IdentityBackwardIsToldWithStepAndCollective) {
  LinearWorld world = unlike();
  const auto findings = diagnosis(world, world.held_with({{"y", "identity"}}));
  ASSERT_THAT(rules(findings), ElementsAre("identity-backward"));
  EXPECT_EQ(findings[0].collective, "all_reduce");
  EXPECT_EQ(findings[0].step, "y");
  EXPECT_THAT(findings[0].ranks, ElementsAre(0, 1, 2));
  EXPECT_FALSE(findings[0].factor);
  EXPECT_THAT(findings[0].text, HasSubstr("passed the local cotangent on"));
  // Its losses are not one loss: the remedy does not pretend that an objective would do.
  EXPECT_THAT(findings[0].text, Not(HasSubstr("objective")));
}

TEST(Diagnose, IdentityBackwardOfOneLossNamesTheObjectiveThatItIsRightFor) {
  LinearWorld world = alike();
  const auto findings = diagnosis(world, world.held_with({{"y", "identity"}}));
  EXPECT_EQ(findings[0].rule, "identity-backward");
  EXPECT_DOUBLE_EQ(*findings[0].factor, 1.0 / 3);
  EXPECT_THAT(findings[0].text,
              HasSubstr("The gradients are 1/3 of the truth on every rank: the backward of "
                        "all_reduce passed the local cotangent on and dropped the other ranks'. "
                        "Right if the loss is one loss that every rank computes (objective "
                        "\"replicated\")."));
  const Finding& objective = named(findings, "objective");
  EXPECT_THAT(objective.text, HasSubstr("\"mean\""));
  EXPECT_THAT(objective.text, HasSubstr("\"replicated\""));
  EXPECT_THAT(objective.text, Not(HasSubstr("rank:0")));
  // Equal losses cannot tell it from the adjoint divided by three: both are given.
  EXPECT_THAT(rules(findings), ElementsAre("identity-backward", "scaled", "objective"));
  EXPECT_EQ(named(findings, "scaled").step, "y");
}

TEST(Diagnose, TheAdjointUnderReplicatedIsTheSumNotAWrongBackward) {
  LinearWorld world = alike();
  world.which.objective.kind = Objective::Kind::kReplicated;
  const auto findings = diagnosis(world, world.held_with({}));
  EXPECT_THAT(rules(findings), ElementsAre("objective", "scaled"));
  EXPECT_EQ(findings[0].factor, 3);
  EXPECT_THAT(findings[0].text, HasSubstr("\"sum\" (every rank's loss counts)"));
  EXPECT_THAT(findings[1].text, HasSubstr("the world size"));
  EXPECT_EQ(world.replays, 1);
}

TEST(Diagnose, ForgottenOpOfAnAverage) {
  LinearWorld world({2, 3, 5}, {7, 11, 13});
  world.reduce("y", ReduceOp::kAvg);
  const auto findings = diagnosis(world, world.held_with({{"y", "forgotten_op"}}));
  EXPECT_EQ(findings[0].rule, "forgotten-op");
  EXPECT_EQ(findings[0].factor, 3);
  // Of an average summing to all and multiplying by three look the same.
  EXPECT_THAT(rules(findings), Contains("double-reduction"));
  EXPECT_THAT(rules(findings), Not(Contains("identity-backward")));
}

TEST(Diagnose, ASumTakenTwice) {
  LinearWorld world = unlike();
  const auto findings = diagnosis(world, world.held_with({{"y", "multiplied"}}));
  EXPECT_THAT(rules(findings), ElementsAre("double-reduction", "scaled"));
  EXPECT_EQ(findings[0].factor, 3);
}

TEST(Diagnose, OfSeveralCollectivesTheWrongOneIsBlamed) {
  LinearWorld world({2, 3, 5}, {7, 11, 13});
  world.reduce("y", ReduceOp::kSum, {1, 4, 6});
  world.reduce("z", ReduceOp::kSum, {1, 1, 2});
  const auto first = diagnosis(world, world.held_with({{"y", "identity"}}));
  ASSERT_THAT(rules(first), ElementsAre("identity-backward"));
  EXPECT_EQ(first[0].step, "y");
  // One fits, so none is tried on both.
  EXPECT_LE(world.replays, 1 + static_cast<int>(single_hypotheses(world.program).size()));
  const auto second = diagnosis(world, world.held_with({{"z", "identity"}}));
  ASSERT_EQ(second[0].rule, "identity-backward");
  EXPECT_EQ(second[0].step, "z");
}

TEST(Diagnose, ALibraryAppliesItsRuleToAllCollectives) {
  LinearWorld world({2, 3, 5}, {7, 11, 13});
  world.reduce("y", ReduceOp::kSum, {1, 4, 6});
  world.reduce("z", ReduceOp::kSum, {1, 1, 2});
  const auto findings = diagnosis(world, world.held_with({{"y", "identity"}, {"z", "identity"}}));
  ASSERT_THAT(rules(findings), ElementsAre("identity-backward"));
  EXPECT_THAT(findings[0].text, HasSubstr("steps y and z"));
}

TEST(Diagnose, InexactGradientsAreExplainedWithinTheirBounds) {
  LinearWorld world = unlike();
  world.bound = 1e-12;
  GradientByRank held = world.held_with({{"y", "identity"}});
  held[1] = Array::scalar((*held[1])[0] + 0.5e-12);
  EXPECT_THAT(rules(diagnosis(world, held)), ElementsAre("identity-backward"));
  held[1] = Array::scalar((*held[1])[0] + 1e-9);
  EXPECT_THAT(rules(diagnosis(world, held)), ElementsAre("unexplained"));
}

TEST(Diagnose, WhatNoRuleGivesIsLocalised) {
  LinearWorld world = unlike();
  GradientByRank held = world.held_with({});
  held[2] = Array::scalar(1000);
  const auto findings = diagnosis(world, held);
  ASSERT_THAT(rules(findings), ElementsAre("unexplained"));
  EXPECT_THAT(findings[0].ranks, ElementsAre(2));
  EXPECT_THAT(findings[0].text, HasSubstr("differ from the truth on rank 2"));
  EXPECT_THAT(findings[0].text, HasSubstr("First on rank 2, x: 1000, the truth is 155"));
}

TEST(Diagnose, AnotherConstantIsScaledToo) {
  LinearWorld world = unlike();
  GradientByRank held = world.held_with({});
  for (auto& g : held) g = Array::scalar((*g)[0] * 0.75);
  const auto findings = diagnosis(world, held);
  ASSERT_THAT(rules(findings), ElementsAre("scaled"));
  EXPECT_EQ(findings[0].factor, 0.75);
  EXPECT_THAT(findings[0].text, HasSubstr("3/4 of the truth"));
}

TEST(Diagnose, AZeroInTheTruthSaysNothingOfTheFactorButMustBeZero) {
  LinearWorld world({2, 0, 5}, {7, 11, 13});
  world.reduce("y");
  GradientByRank held = world.held_with({});
  for (auto& g : held) g = Array::scalar((*g)[0] * 5);
  EXPECT_THAT(rules(diagnosis(world, held)), ElementsAre("scaled"));
  held[1] = Array::scalar(1);
  EXPECT_THAT(rules(diagnosis(world, held)), ElementsAre("unexplained"));
}

TEST(Diagnose, MissingGradientsNameTheStepWithoutBackward) {
  LinearWorld world = unlike();
  const auto findings = diagnosis(world, {std::nullopt, std::nullopt, std::nullopt});
  ASSERT_THAT(rules(findings), ElementsAre("no-gradient"));
  EXPECT_EQ(findings[0].step, "y");
  EXPECT_EQ(findings[0].collective, "all_reduce");
  EXPECT_THAT(findings[0].text, HasSubstr("x got no gradient (None) on every rank"));
}

TEST(Diagnose, OneMissingGradientHasNoStepToBlame) {
  LinearWorld world = unlike();
  GradientByRank held = world.held_with({});
  held[1].reset();
  const auto findings = diagnosis(world, held);
  ASSERT_THAT(rules(findings), ElementsAre("no-gradient"));
  EXPECT_EQ(findings[0].step, "");
  EXPECT_THAT(findings[0].ranks, ElementsAre(1));
}

TEST(Diagnose, AMissingGradientOfAZeroTruthIsReportedThoughItMatches) {
  LinearWorld world({2, 0, 5}, {7, 11, 13});
  world.reduce("y");
  GradientByRank held = world.held_with({});
  held[1].reset();
  const auto findings = diagnosis(world, held);
  ASSERT_THAT(rules(findings), ElementsAre("no-gradient"));
  EXPECT_THAT(findings[0].text, HasSubstr("zero in the truth"));
  EXPECT_TRUE(world.comparison().equal());
}

TEST(Diagnose, AMissingGradientThatIsZeroInTheTruthIsNotWhatIsWrong) {
  LinearWorld world({2, 0, 5}, {7, 11, 13});
  world.reduce("y");
  GradientByRank held = world.held_with({{"y", "identity"}});
  held[1].reset();  // 0 times anything
  const auto findings = diagnosis(world, held);
  EXPECT_EQ(findings[0].rule, "identity-backward");
  EXPECT_EQ(findings.back().rule, "no-gradient");
  EXPECT_THAT(findings.back().text, HasSubstr("zero in the truth"));
}

TEST(Diagnose, ZerosWhereACollectiveCutsThePathAreAMissingReduction) {
  LinearWorld world = unlike();
  const auto findings = diagnosis(world, scalars({0, 0, 0}));
  EXPECT_EQ(findings[0].rule, "missing-reduction");
  EXPECT_EQ(findings[0].step, "y");
  EXPECT_EQ(named(findings, "scaled").factor, 0);
  EXPECT_THAT(named(findings, "scaled").text, HasSubstr("are zero on every rank"));
}

TEST(Diagnose, ZerosOnSomeRanksAreCalledSo) {
  LinearWorld world = unlike();
  GradientByRank held = world.held_with({});
  for (const std::size_t rank : {1, 2}) held[rank] = Array::scalar(0);
  EXPECT_THAT(diagnosis(world, held)[0].text, HasSubstr("are zero on ranks 1 and 2, and right elsewhere"));
  held[2] = Array::scalar(1);
  EXPECT_THAT(diagnosis(world, held)[0].text, HasSubstr("differ from the truth on ranks 1 and 2"));
}

TEST(Diagnose, OneRanksLossThatIsMissingFromEverySum) {
  LinearWorld world = unlike();
  // Without rank 1's 11: 20 instead of 31.
  const auto findings = diagnosis(world, scalars({40, 60, 100}));
  EXPECT_EQ(findings[0].rule, "missing-reduction");
  EXPECT_THAT(findings[0].ranks, ElementsAre(1));
  EXPECT_THAT(findings[0].text, HasSubstr("rank 1"));
}

TEST(Diagnose, RightGradientsOnTheWrongRanks) {
  LinearWorld world = unlike();
  GradientByRank held = world.held_with({});
  std::swap(held[0], held[2]);
  const auto findings = diagnosis(world, held);
  ASSERT_THAT(rules(findings), ElementsAre("wrong-slice"));
  EXPECT_THAT(findings[0].ranks, ElementsAre(0, 2));
  EXPECT_THAT(findings[0].text, HasSubstr("rank 0 that of rank 2 and rank 2 that of rank 0"));
}

TEST(Diagnose, NaNWhereTheTruthIsANumber) {
  LinearWorld world = unlike();
  GradientByRank held = world.held_with({});
  held[2] = Array::scalar(kNaN);
  const auto findings = diagnosis(world, held);
  ASSERT_THAT(rules(findings), ElementsAre("stale-or-aliased"));
  EXPECT_THAT(findings[0].ranks, ElementsAre(2));
}

TEST(Diagnose, ANarrowerDtypeOnTheWay) {
  LinearWorld world = unlike();
  GradientByRank held = world.held_with({});
  held[0] = Array::scalar((*held[0])[0] * (1 + 0x1p-24));
  const auto findings = diagnosis(world, held);
  ASSERT_THAT(rules(findings), ElementsAre("precision"));
  EXPECT_THAT(findings[0].text, HasSubstr("as if computed in float32"));
  held[0] = Array::scalar((*world.held_with({})[0])[0] * (1 - 0x1p-9));
  // Three digits of one number are no evidence.
  EXPECT_THAT(rules(diagnosis(world, held)), ElementsAre("unexplained"));
}

TEST(Diagnose, AWrongForwardValueComesFirst) {
  LinearWorld world = unlike();
  world.observed(world.held_with({}));
  ForwardDifference d;
  d.step = "y";
  d.rank = 1;
  d.ranks = {1, 2};
  d.simulated = {Array::scalar(10), Array::scalar(10), Array::scalar(10)};
  d.distributed = {Array::scalar(10), Array::scalar(4), Array::scalar(5)};
  const Evidence& evidence = world.observed(world.held_with({}));
  world.comparison().forward = d;
  const auto findings = diagnose(evidence, world.replay());
  ASSERT_THAT(rules(findings), ElementsAre("forward"));
  EXPECT_EQ(findings[0].collective, "all_reduce");
  EXPECT_THAT(findings[0].text,
              HasSubstr("in step y (all_reduce), rank 1 has 4 instead of 10 and rank 2 has 5"));
}

TEST(Diagnose, AForwardValueThatIsOffByAFactorSaysSo) {
  LinearWorld world = unlike();
  const Evidence& evidence = world.observed(world.held_with({}));
  ForwardDifference d;
  d.step = "y";
  d.rank = 0;
  d.ranks = {0, 1, 2};
  d.simulated = {Array::scalar(10), Array::scalar(-7), Array::scalar(0)};
  d.distributed = {Array::scalar(10. / 3), Array::scalar(-7. / 3), Array::scalar(0)};
  world.comparison().forward = d;
  EXPECT_THAT(diagnose(evidence, world.replay())[0].text, HasSubstr("all of it is 1/3 of"));
  world.comparison().forward->distributed[1] = Array::scalar(-7. / 2);
  EXPECT_THAT(diagnose(evidence, world.replay())[0].text, testing::Not(HasSubstr("all of it")));
}

TEST(Diagnose, AProgramThatComputesAnotherLoss) {
  LinearWorld world = unlike();
  const Evidence& evidence = world.observed(world.held_with({}));
  GuardDifference d;
  d.simulated = Array::scalar(10);
  d.wanted = Array::scalar(30);
  d.factor = 1.0 / 3;
  world.comparison().program = d;
  const auto findings = diagnose(evidence, world.replay());
  ASSERT_THAT(rules(findings), ElementsAre("program"));
  EXPECT_THAT(findings[0].text, HasSubstr("1/3 of (1 / the world size) what it should be"));
  EXPECT_THAT(findings[0].text, HasSubstr("the objective is 10, single_device gives 30"));
}

TEST(Diagnose, AFilesTruthThatIsWrong) {
  LinearWorld world = unlike();
  const Evidence& evidence = world.observed(world.held_with({{"y", "identity"}}));
  GuardDifference d;
  d.input = "x";
  d.rank = 1;
  d.simulated = Array::scalar(93);
  d.wanted = Array::scalar(94);
  world.comparison().truth = d;
  const auto findings = diagnose(evidence, world.replay());
  EXPECT_THAT(rules(findings), ElementsAre("truth", "identity-backward"));
  EXPECT_THAT(findings[0].text, HasSubstr("truth for x on rank 1 is 94, the program gives 93"));
}

TEST(Diagnose, WhereABranchIsUndecidedNobodyIsAccused) {
  LinearWorld world = unlike();
  const Evidence& known = world.observed(world.held_with({{"y", "identity"}}));
  world.simulation().undecided = {"relu in step z"};
  const Evidence evidence(known.which(), known.asked(), world.simulation(), known.comparison());
  EXPECT_THAT(diagnose(evidence, world.replay()), IsEmpty());
}

TEST(Diagnose, TheAverageOfGradientsIsPartOfTheReplay) {
  LinearWorld world = unlike();
  world.program.inputs[0].layout = {{"", sample::kReplicate}};
  world.program.inputs[0].sync = {{"", Input::Sync::kMean}};
  world.which.objective.kind = Objective::Kind::kMean;
  world.bound = 1e-12;  // thirds
  EXPECT_THAT(diagnosis(world, world.held_with({})), IsEmpty());
  const auto findings = diagnosis(world, world.held_with({{"y", "identity"}}));
  EXPECT_THAT(rules(findings), ElementsAre("identity-backward"));
}

TEST(Diagnose, AnInvariantWeightOfWhichEachRankHoldsItsShare) {
  LinearWorld world({2, 3, 5}, {1, 1, 1});
  world.reduce("y");
  world.program.inputs[0].layout = {{"", sample::kInvariant}};
  world.which.objective.kind = Objective::Kind::kReplicated;
  // Megatron's identity backward is right under one replicated loss, and leaves each rank the
  // derivative of its own part.
  const auto findings = diagnosis(world, world.held_with({{"y", "identity"}}));
  EXPECT_THAT(rules(findings), Contains("missing-reduction"));
  EXPECT_THAT(rules(findings), Contains("unsynchronised"));
  EXPECT_THAT(named(findings, "unsynchronised").ranks, ElementsAre(1, 2));
  EXPECT_THAT(named(findings, "missing-reduction").text, HasSubstr("the shares add up"));
}

TEST(Diagnose, AReplayThatIsRefusedExplainsNothing) {
  LinearWorld world = unlike();
  const Evidence& evidence = world.observed(world.held_with({{"y", "identity"}}));
  const Replay refuses = [](const SimulateRequest&) {
    Simulation s;
    s.invalid = InvalidProgram{"", "shapes do not fit", ""};
    return s;
  };
  EXPECT_THAT(rules(diagnose(evidence, refuses)), ElementsAre("unexplained"));
}

// Rules whose arithmetic the linear world does not know: the replay gives a fixed answer to one of
// them, and the truth to the rest.
struct Canned {
  CollectiveKind kind;
  ReduceOp op;
  std::string rule, finding;
};

class Canneds : public testing::TestWithParam<Canned> {};

TEST_P(Canneds, AReplayUnderTheRuleFindsIt) {
  const Canned& canned = GetParam();
  LinearWorld world = unlike();
  auto& call = std::get<CollectiveCall>(world.program.steps[0].what);
  call.kind = canned.kind;
  call.op = canned.op;
  const Evidence& evidence = world.observed(scalars({1, 10, 4}));
  const Replay replay = [&](const SimulateRequest& request) {
    SimulateRequest truth = request;
    truth.rules.clear();
    Simulation s = world.simulate(truth);
    if (request.rules.size() == 1 && request.rules[0].rule == canned.rule)
      s.gradients[0][0].parts = scalars({1, 10, 4});
    return s;
  };
  const auto findings = diagnose(evidence, replay);
  ASSERT_THAT(rules(findings), ElementsAre(canned.finding));
  EXPECT_EQ(findings[0].collective, traits(canned.kind).name);
}

INSTANTIATE_TEST_SUITE_P(
    Rules, Canneds,
    testing::Values(
        Canned{CollectiveKind::kAllGather, ReduceOp::kSum, "own_slice", "own-slice"},
        Canned{CollectiveKind::kSlice, ReduceOp::kSum, "gather", "wrong-slice"},
        Canned{CollectiveKind::kAllReduce, ReduceOp::kMax, "same_op", "same-op-backward"},
        Canned{CollectiveKind::kReduceScatter, ReduceOp::kAvg, "forgotten_op", "forgotten-op"},
        Canned{CollectiveKind::kAllReduce, ReduceOp::kProduct, "out_over_x", "zero-input"},
        Canned{CollectiveKind::kAllReduce, ReduceOp::kProduct, "sum_out_over_x", "zero-input"},
        Canned{CollectiveKind::kAllReduce, ReduceOp::kMin, "full_to_ties", "tie"},
        Canned{CollectiveKind::kAllReduce, ReduceOp::kMax, "own_full_to_ties", "tie"},
        Canned{CollectiveKind::kCopy, ReduceOp::kSum, "sum_to_all", "double-reduction"},
        Canned{CollectiveKind::kAllGather, ReduceOp::kSum, "divided", "scaled"},
        Canned{CollectiveKind::kBroadcast, ReduceOp::kSum, "leftovers", "stale-or-aliased"}),
    [](const auto& canned) {
      return canned.param.rule + "_" + std::string(traits(canned.param.kind).name);
    });

TEST(Diagnose, WhatTheSubjectIsKnownToDoComesFirst) {
  LinearWorld tied({2, 3, 5}, {7, 11, 13});
  tied.reduce("y", ReduceOp::kMax);
  tied.which.subject = "mindspore";
  const Evidence& evidence = tied.observed(scalars({1, 10, 4}));
  const Replay either = [&](const SimulateRequest& request) {
    SimulateRequest truth = request;
    truth.rules.clear();
    Simulation s = tied.simulate(truth);
    for (const RuleChoice& choice : request.rules)
      if (choice.rule == "forgotten_op" || choice.rule == "full_to_ties")
        s.gradients[0][0].parts = scalars({1, 10, 4});
    return s;
  };
  EXPECT_THAT(rules(diagnose(evidence, either)), ElementsAre("tie", "forgotten-op"));
  tied.which.subject = "in_place";
  EXPECT_THAT(rules(diagnose(evidence, either)), ElementsAre("forgotten-op", "tie"));
}

TEST(Diagnose, ZeroGradientsSayNothingForAnObjective) {
  // Rank 0's loss depends on nothing: the truth of rank:0 is zero, as is what is observed.
  LinearWorld world({2, 3, 5}, {0, 11, 13});
  EXPECT_THAT(rules(diagnosis(world, scalars({0, 0, 0}))), Not(Contains("objective")));
}

// --- Hypotheses ---

Program with_calls(std::vector<Step> steps) {
  Program program = sample::world(4);
  program.inputs = {sample::input("x", sample::kLocal)};
  program.steps = std::move(steps);
  for (Step& step : program.steps) {
    std::get<CollectiveCall>(step.what).operand.text = "x";
    program.loss.text += " + " + step.name;
  }
  return program;
}

TEST(Hypotheses, WhatIsTheAdjointOfASumIsNoHypothesis) {
  for (const Hypothesis& h : single_hypotheses(with_calls({sample::all_reduce("y")})))
    EXPECT_THAT(h[0].rule, Not(testing::AnyOf("same_op", "forgotten_op", "sum_to_all", "own_part",
                                              "reduced_twice", "next_slice", "next_cotangent")));
}

TEST(Hypotheses, AGroupOfOneRankCanGetLittleWrong) {
  Program program = with_calls({sample::all_reduce("y")});
  program.world_size = 1;
  EXPECT_EQ(single_hypotheses(program).size(), 1);  // none
  program = with_calls({sample::all_reduce("y", ReduceOp::kPremulSum)});
  program.world_size = 1;
  EXPECT_EQ(single_hypotheses(program).size(), 2);  // the factor may be forgotten
  program = with_calls({sample::all_reduce("y", ReduceOp::kProduct)});
  program.world_size = 1;
  EXPECT_EQ(single_hypotheses(program).size(), 3);  // the product divided by a 0, two ways
}

TEST(Hypotheses, AreBounded) {
  std::vector<Step> steps;
  for (int i = 0; i < 200; ++i)
    steps.push_back(sample::all_reduce("y" + std::to_string(i), ReduceOp::kProduct));
  const Program program = with_calls(std::move(steps));
  EXPECT_LE(single_hypotheses(program).size() + joint_hypotheses(program, "torch_nn").size(),
            kMostReplays);
}

TEST(Hypotheses, AllOfOneKindAndALibrarysMixture) {
  Step gather = sample::all_reduce("g");
  std::get<CollectiveCall>(gather.what).kind = CollectiveKind::kAllGather;
  Step reduce = sample::all_reduce("r", ReduceOp::kAvg);
  std::get<CollectiveCall>(reduce.what).kind = CollectiveKind::kReduce;
  const auto joint = joint_hypotheses(
      with_calls({sample::all_reduce("a"), sample::all_reduce("b", ReduceOp::kMax), gather}),
      "torch_nn");
  const auto has = [](const std::vector<Hypothesis>& all, const std::vector<std::string>& wanted) {
    return std::any_of(all.begin(), all.end(), [&](const Hypothesis& h) {
      std::vector<std::string> names;
      for (const RuleChoice& c : h) names.push_back(c.step + ":" + c.rule);
      return names == wanted;
    });
  };
  EXPECT_TRUE(has(joint, {"a:identity", "b:identity"}));
  EXPECT_TRUE(has(joint, {"a:same_op", "b:same_op"}));  // torch_nn's own, its all_gather is right
  for (const Hypothesis& h : joint) EXPECT_GE(h.size(), 2);
  const auto mixed =
      joint_hypotheses(with_calls({sample::all_reduce("b", ReduceOp::kMax), reduce}), "in_place");
  EXPECT_TRUE(has(mixed, {"b:same_op", "r:forgotten_op"}));
}

}  // namespace
}  // namespace distgrad
