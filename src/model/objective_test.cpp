#include "model/objective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distgrad {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = Objective::Kind;
using Word = Objective::Axis;
using Sync = Input::Sync;

Objective plain(Kind kind, int rank = 0) { return {.kind = kind, .rank = rank, .axes = {}}; }
Objective by_axis(Word dp, Word tp) {
  return {.kind = Kind::kByAxis, .rank = 0, .axes = {{"dp", dp}, {"tp", tp}}};
}

Program world_of(int size) {
  Program program;
  program.world_size = size;
  return program;
}

// dp 2 x tp 3: rank = 3 dp + tp.
Program mesh_2x3() {
  Program program = world_of(6);
  program.groups = {{"dp", {{0, 3}, {1, 4}, {2, 5}}, true}, {"tp", {{0, 1, 2}, {3, 4, 5}}, true}};
  return program;
}

Input synced(std::string name, std::vector<std::pair<std::string, Sync>> sync) {
  Input input;
  input.name = std::move(name);
  input.sync = std::move(sync);
  return input;
}

std::vector<std::string> names_of(const std::vector<Objective>& objectives) {
  std::vector<std::string> names;
  for (const Objective& o : objectives) names.push_back(spelled(o));
  return names;
}

TEST(Objective, IsSpelledAsInCaseNames) {
  EXPECT_EQ(spelled(plain(Kind::kSum)), "sum");
  EXPECT_EQ(spelled(plain(Kind::kRank, 1)), "rank:1");
  EXPECT_EQ(spelled(by_axis(Word::kMean, Word::kReplicated)), "dp=mean+tp=replicated");
}

TEST(TruthWeights, PlainObjectives) {
  const Program three = world_of(3);
  EXPECT_THAT(truth_weights(three, plain(Kind::kSum)), ElementsAre(1, 1, 1));
  EXPECT_THAT(truth_weights(three, plain(Kind::kMean)), ElementsAre(1.0 / 3, 1.0 / 3, 1.0 / 3));
  EXPECT_THAT(truth_weights(three, plain(Kind::kReplicated)), ElementsAre(1, 0, 0));
  EXPECT_THAT(truth_weights(three, plain(Kind::kRank, 2)), ElementsAre(0, 0, 1));
  EXPECT_THAT(truth_weights(world_of(1), plain(Kind::kMean)), ElementsAre(1));
}

TEST(TruthWeights, ByAxisIsTheProduct) {
  EXPECT_THAT(truth_weights(mesh_2x3(), by_axis(Word::kMean, Word::kReplicated)),
              ElementsAre(0.5, 0, 0, 0.5, 0, 0));
  EXPECT_THAT(truth_weights(mesh_2x3(), by_axis(Word::kReplicated, Word::kSum)),
              ElementsAre(1, 1, 1, 0, 0, 0));
  // 1/6, not 1/2 * 1/3 rounded twice.
  EXPECT_EQ(truth_weights(mesh_2x3(), plain(Kind::kMean))[0], 1.0 / 6);
}

TEST(BackwardWeights, OnlyTheReferenceDividesUnderReplicated) {
  const Program two = world_of(2);
  EXPECT_THAT(backward_weights(two, plain(Kind::kReplicated), false), ElementsAre(1, 1));
  EXPECT_THAT(backward_weights(two, plain(Kind::kReplicated), true), ElementsAre(0.5, 0.5));
  EXPECT_THAT(backward_weights(two, plain(Kind::kSum), true), ElementsAre(1, 1));
  EXPECT_THAT(backward_weights(two, plain(Kind::kMean), false), ElementsAre(0.5, 0.5));
  EXPECT_THAT(backward_weights(two, plain(Kind::kRank, 1), true), ElementsAre(0, 1));
  EXPECT_EQ(backward_weights(mesh_2x3(), by_axis(Word::kMean, Word::kReplicated), false)[5], 0.5);
  EXPECT_EQ(backward_weights(mesh_2x3(), by_axis(Word::kMean, Word::kReplicated), true)[5],
            1.0 / 6);
}

TEST(BackwardWeights, AMeanIsLeftToTheSyncThatTakesIt) {
  Program program = world_of(4);
  program.inputs = {synced("w", {{"", Sync::kMean}}), synced("x", {}),
                    synced("v", {{"", Sync::kSum}})};
  EXPECT_EQ(backward_weights(program, plain(Kind::kMean), false)[0], 1);
  EXPECT_THAT(post_sync_divisors(program, plain(Kind::kMean), false), ElementsAre(1, 4, 4));
  // replicated divides for the reference alone, so only there is something left to the sync.
  EXPECT_EQ(backward_weights(program, plain(Kind::kReplicated), true)[0], 1);
  EXPECT_THAT(post_sync_divisors(program, plain(Kind::kReplicated), true), ElementsAre(1, 4, 4));
  EXPECT_THAT(post_sync_divisors(program, plain(Kind::kReplicated), false), ElementsAre(1, 1, 1));
  // Where the weight does not divide, a mean changes nothing else.
  EXPECT_THAT(post_sync_divisors(program, plain(Kind::kSum), true), ElementsAre(1, 1, 1));
  EXPECT_THAT(post_sync_divisors(program, plain(Kind::kRank, 3), true), ElementsAre(1, 1, 1));
  EXPECT_THAT(backward_weights(program, plain(Kind::kRank, 3), true), ElementsAre(0, 0, 0, 1));
}

TEST(BackwardWeights, ASyncAlongOneAxisLeavesTheOtherToTheWeight) {
  Program program = mesh_2x3();
  program.inputs = {synced("w", {{"dp", Sync::kMean}}), synced("x", {})};
  EXPECT_EQ(backward_weights(program, plain(Kind::kMean), false)[0], 1.0 / 3);
  EXPECT_THAT(post_sync_divisors(program, plain(Kind::kMean), false), ElementsAre(1, 2));
  EXPECT_EQ(backward_weights(program, by_axis(Word::kMean, Word::kReplicated), true)[0], 1.0 / 3);
  EXPECT_EQ(backward_weights(program, by_axis(Word::kMean, Word::kReplicated), false)[0], 1);
  EXPECT_THAT(post_sync_divisors(program, by_axis(Word::kSum, Word::kMean), false),
              ElementsAre(1, 1));
}

TEST(BackwardWeights, TwoInputsMaySyncAlongDifferentAxes) {
  Program program = mesh_2x3();
  program.inputs = {synced("a", {{"dp", Sync::kMean}}), synced("b", {{"tp", Sync::kMean}}),
                    synced("c", {{"", Sync::kMean}})};
  EXPECT_EQ(backward_weights(program, plain(Kind::kMean), false)[0], 1);
  EXPECT_THAT(post_sync_divisors(program, plain(Kind::kMean), false), ElementsAre(3, 2, 1));
}

TEST(RanksThatAgree, AlongTheReplicatedAxes) {
  EXPECT_THAT(ranks_that_agree(world_of(3), plain(Kind::kReplicated)),
              ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_THAT(ranks_that_agree(world_of(3), plain(Kind::kMean)), IsEmpty());
  EXPECT_THAT(ranks_that_agree(world_of(1), plain(Kind::kReplicated)), IsEmpty());
  EXPECT_THAT(ranks_that_agree(world_of(3), plain(Kind::kRank)), IsEmpty());
  EXPECT_THAT(ranks_that_agree(mesh_2x3(), by_axis(Word::kReplicated, Word::kSum)),
              ElementsAre(ElementsAre(0, 3), ElementsAre(1, 4), ElementsAre(2, 5)));
  EXPECT_THAT(ranks_that_agree(mesh_2x3(), by_axis(Word::kMean, Word::kReplicated)),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
}

TEST(DefinedObjectives, ReplicatedNeedsEqualLosses) {
  EXPECT_THAT(names_of(defined_objectives(world_of(2), {3, 3})),
              ElementsAre("sum", "mean", "replicated", "rank:0", "rank:1"));
  EXPECT_THAT(names_of(defined_objectives(world_of(2), {3, 4})),
              ElementsAre("sum", "mean", "rank:0", "rank:1"));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(names_of(defined_objectives(world_of(2), {nan, nan})),
              ElementsAre("sum", "mean", "replicated", "rank:0", "rank:1"));
}

TEST(DefinedObjectives, ByAxisWhereLossesAgreeAlongReplicatedAxes) {
  // Equal along tp, different along dp.
  EXPECT_THAT(names_of(defined_objectives(mesh_2x3(), {1, 1, 1, 2, 2, 2})),
              ElementsAre("sum", "mean", "dp=sum+tp=mean", "dp=sum+tp=replicated", "dp=mean+tp=sum",
                          "dp=mean+tp=replicated", "rank:0", "rank:1", "rank:2", "rank:3", "rank:4",
                          "rank:5"));
}

TEST(DefinedObjectives, AnAxisOfOneRankAddsNoCombination) {
  Program program = world_of(2);
  program.groups = {{"dp", {{0, 1}}, true}, {"tp", {{0}, {1}}, true}};
  EXPECT_THAT(names_of(defined_objectives(program, {1, 1})),
              ElementsAre("sum", "mean", "replicated", "rank:0", "rank:1"));
}

TEST(DefinedObjectives, EqualWeightsOfTwoCombinationsAreBothNamed) {
  Program program = world_of(4);
  program.groups = {{"dp", {{0, 2}, {1, 3}}, true}, {"tp", {{0, 1}, {2, 3}}, true}};
  EXPECT_THAT(names_of(defined_objectives(program, {1, 2, 3, 4})),
              ElementsAre("sum", "mean", "dp=sum+tp=mean", "dp=mean+tp=sum", "rank:0", "rank:1",
                          "rank:2", "rank:3"));
}

TEST(DefinedObjectives, StayBoundedForManyAxes) {
  Program program = world_of(64);
  for (int a = 0; a < 6; ++a) {
    Group axis{.name = "a" + std::to_string(a), .partition = {}, .is_mesh_axis = true};
    for (int r = 0; r < 64; ++r)
      if ((r >> (5 - a)) % 2 == 0) axis.partition.push_back({r, r + (1 << (5 - a))});
    program.groups.push_back(axis);
  }
  EXPECT_EQ(defined_objectives(program, std::vector<double>(64, 1.0)).size(), 3u + 6 * 6 + 64);
}

TEST(Group, FindsARanksPlaceInItsList) {
  const Group group{.name = "g", .partition = {{0, 2}, {3, 1}}, .is_mesh_axis = false};
  EXPECT_EQ(group.place_of(1), std::make_pair(1, 1));
  EXPECT_EQ(group.place_of(0), std::make_pair(0, 0));
  EXPECT_THROW(group.place_of(4), std::logic_error);
}

TEST(Program, KnowsItsMeshAxesAmongTheGroups) {
  Program program = mesh_2x3();
  program.groups.push_back({"other", {{0, 1, 2, 3, 4, 5}}, false});
  EXPECT_EQ(program.mesh().size(), 2u);
  EXPECT_EQ(program.group_named("other"), &program.groups[2]);
  EXPECT_EQ(program.group_named("none"), nullptr);
}

}  // namespace
}  // namespace distgrad
