#include "pool/stalled.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "pool/rank_sight.h"

namespace distgrad {
namespace {

using State = RankPlace::State;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

Program one_step(int world_size) {
  Program program;
  program.world_size = world_size;
  CollectiveCall call;
  call.kind = CollectiveKind::kAllReduce;
  program.steps.push_back({"y", "", call});
  return program;
}

// A rank of three that waits in the world's `number`-th collective.
RankPlace waits(int rank, std::uint64_t number = 1) {
  NotedCall call;
  call.version = 2;
  call.waits = true;
  call.kind = "all_reduce";
  call.op = "sum";
  call.dtype = "float64";
  call.shape = {2, 2};
  call.sizes_agree = true;
  call.place = "loss.py:41";
  call.group = "world";
  call.ranks = {0, 1, 2};
  call.number = number;
  call.entered = {{"world", number}};
  call.recent = {call};
  return {rank, State::kRunning, 0, Phase::kForward, call};
}

// Not in a collective, having entered so many.
RankPlace computes(int rank, std::uint64_t entered, State state = State::kRunning) {
  RankPlace place = waits(rank, entered);
  place.call->waits = false;
  if (entered == 0) place.call->entered.clear();
  place.state = state;
  return place;
}

RankPlace waits_in_pair(int rank, std::vector<int> ranks, std::uint64_t of_world = 0) {
  RankPlace place = waits(rank);
  place.call->group = "pair";
  place.call->ranks = std::move(ranks);
  place.call->entered = {{"pair", 1}};
  place.call->recent = {*place.call};
  if (of_world > 0) place.call->entered["world"] = of_world;
  return place;
}

TEST(Stalled, WhoHasNotEnteredIsNamedWithWhereItIs) {
  RankPlace asleep = computes(2, 0);
  asleep.seen_at = "loss.py:9 in f: time.sleep(1000), asleep";
  const std::vector<RankPlace> places = {waits(0), waits(1), asleep};
  const RankError error = absence_error(one_step(3), places).value();
  EXPECT_EQ(error.kind, ErrorKind::kHang);
  EXPECT_EQ(error.rank, 2);
  EXPECT_EQ(error.step, "y");
  EXPECT_EQ(error.message,
            "rank 2 (loss.py:9 in f: time.sleep(1000), asleep) has not entered all_reduce sum of "
            "float64 [2, 2], where ranks 0, 1 (loss.py:41) wait; step y (all_reduce), forward");
  EXPECT_THAT(awaited_ranks(places), ElementsAre(2));
  EXPECT_FALSE(difference_error(one_step(3), places));
  EXPECT_FALSE(is_deadlock(one_step(3), places)) << "it may come yet";
}

TEST(Stalled, WhoIsThroughWithTheCaseWillNeverCome) {
  const std::vector<RankPlace> places = {waits(0, 4), computes(1, 3, State::kFinished),
                                         waits(2, 4)};
  EXPECT_TRUE(is_deadlock(one_step(3), places));
  const RankError error = absence_error(one_step(3), places).value();
  EXPECT_EQ(error.rank, 1);
  EXPECT_THAT(error.message,
              HasSubstr("rank 1 (loss.py:41) has finished the case and never entered all_reduce"));
}

TEST(Stalled, AllInOneCollectiveAlikeGoOn) {
  const std::vector<RankPlace> places = {waits(0), waits(1), waits(2)};
  EXPECT_FALSE(is_deadlock(one_step(3), places));
  EXPECT_FALSE(absence_error(one_step(3), places));
  EXPECT_FALSE(difference_error(one_step(3), places));
  EXPECT_THAT(awaited_ranks(places), IsEmpty());
}

TEST(Stalled, WhoHasLeftAlreadyIsNotAbsent) {
  // As the root of a broadcast, which is through first, and computes or has finished.
  for (const RankPlace& left : {computes(0, 1), computes(0, 1, State::kFinished), waits(0, 2)}) {
    const std::vector<RankPlace> places = {left, waits(1), waits(2)};
    EXPECT_FALSE(is_deadlock(one_step(3), places));
  }
}

TEST(Stalled, EachDifferenceIsSaidOfTheMinority) {
  const auto message = [](auto change) {
    std::vector<RankPlace> places = {waits(0), waits(1), waits(2)};
    change(*places[1].call);
    EXPECT_TRUE(is_deadlock(one_step(3), places));
    const RankError error = difference_error(one_step(3), places).value_or(RankError{});
    EXPECT_EQ(error.kind, ErrorKind::kDesync);
    EXPECT_EQ(error.rank, 1);
    return error.message;
  };
  EXPECT_EQ(message([](NotedCall& c) { c.shape = {3}; }),
            "the ranks differ in what should be one collective: rank 1 (loss.py:41) is in "
            "all_reduce sum of float64 [3]; ranks 0, 2 (loss.py:41) are in all_reduce sum of "
            "float64 [2, 2]; step y (all_reduce), forward");
  EXPECT_THAT(message([](NotedCall& c) { c.kind = "all_gather"; }),
              HasSubstr("rank 1 (loss.py:41) is in all_gather"));
  EXPECT_THAT(message([](NotedCall& c) { c.op = "max"; }), HasSubstr("is in all_reduce max of"));
  EXPECT_THAT(message([](NotedCall& c) { c.dtype = "float32"; }),
              HasSubstr("of float32 [2, 2]; ranks 0, 2"));
  EXPECT_THAT(message([](NotedCall& c) { c.root = 2; }), HasSubstr("[2, 2], root 2; ranks 0, 2"));
}

TEST(Stalled, WhoLeftWithAnotherSizeIsNamedThoughItIsFurtherOn) {
  RankPlace further = waits(1, 2);
  further.call->recent = {waits(1, 1).call.value(), further.call.value()};
  further.call->recent[0].shape = {2};
  const std::vector<RankPlace> places = {waits(0), further, waits(2)};
  EXPECT_TRUE(is_deadlock(one_step(3), places));
  EXPECT_THAT(difference_error(one_step(3), places).value().message,
              HasSubstr("rank 1 (loss.py:41) is in all_reduce sum of float64 [2]; ranks 0, 2"));
}

TEST(Stalled, OneCollectiveTooManyIsTheDoingOfWhoIsInIt) {
  const std::vector<RankPlace> places = {computes(0, 3, State::kFinished),
                                         computes(1, 3, State::kFinished), waits(2, 4)};
  EXPECT_EQ(absence_error(one_step(3), places).value().rank, 2);
}

TEST(Stalled, OneCollectiveTooManyIsToldThoughTheOthersAreInAnotherStep) {
  RankPlace one_more = waits(2, 2), later = computes(0, 1);
  one_more.call->step = 0;
  later.step = 1;
  RankPlace other = later;
  other.rank = 1;
  const RankError error =
      absence_error(one_step(3), std::vector<RankPlace>{later, other, one_more}).value();
  EXPECT_EQ(error.rank, 2);
  EXPECT_THAT(error.message, HasSubstr("ranks 0, 1 (loss.py:41) have gone on and never entered"));
  // Alone, it is who left.
  RankPlace waiting = one_more, left = later;
  waiting.rank = 1;
  EXPECT_EQ(absence_error(one_step(3), std::vector<RankPlace>{left, waiting, one_more})->rank, 0);
  // In backward the steps come the other way round.
  for (RankPlace* place : {&one_more, &later, &other}) place->phase = Phase::kBackward;
  one_more.call->in_backward = true;
  EXPECT_EQ(absence_error(one_step(3), std::vector<RankPlace>{later, other, one_more})->rank, 0);
}

TEST(Stalled, WhatAllAreThroughWithIsLookedAtToo) {
  std::vector<std::vector<NotedCall>> entered;
  for (int rank = 0; rank < 3; ++rank)
    entered.push_back({*waits(rank, 1).call, *waits(rank, 2).call});
  EXPECT_FALSE(silent_difference(one_step(3), entered));
  entered[2][1].shape = {9};  // would have failed
  entered[1].pop_back();      // of the first ones only
  EXPECT_FALSE(silent_difference(one_step(3), entered));
  entered[0][0].op = "max";
  const RankError error = silent_difference(one_step(3), entered).value();
  EXPECT_EQ(error.kind, ErrorKind::kDesync);
  EXPECT_EQ(error.rank, 0);
  EXPECT_THAT(error.message,
              HasSubstr("rank 0 (loss.py:41) is in all_reduce max of float64 [2, 2]; ranks 1, 2"));
}

TEST(Stalled, WhoFailedInACollectiveIsComparedToo) {
  std::vector<RankPlace> places = {waits(0), waits(1), waits(2)};
  places[0].state = State::kFinished;  // it raised, and has said so
  places[2].call->dtype = "float32";
  EXPECT_EQ(difference_error(one_step(3), places).value().rank, 2);
}

TEST(Stalled, WhatMayDifferIsNoDifference) {
  std::vector<RankPlace> places = {waits(0), waits(1), waits(2)};
  places[1].call->shape = {4};  // as many elements
  places[2].call->place = "loss.py:57";
  EXPECT_FALSE(difference_error(one_step(3), places));
  for (RankPlace& place : places) place.call->sizes_agree = false;  // all_to_all
  places[1].call->shape = {7};
  EXPECT_FALSE(difference_error(one_step(3), places));
}

TEST(Stalled, OfTwoRanksBothAreNamed) {
  std::vector<RankPlace> places = {waits(0), waits(1)};
  for (RankPlace& place : places) place.call->ranks = {0, 1};
  places[1].call->op = "max";
  const std::string message = difference_error(one_step(2), places).value().message;
  EXPECT_THAT(message, HasSubstr("rank 0 (loss.py:41) is in all_reduce sum"));
  EXPECT_THAT(message, HasSubstr("rank 1 (loss.py:41) is in all_reduce max"));
}

TEST(Stalled, GroupsInAnotherOrder) {
  const std::vector<RankPlace> places = {waits(0), waits(1), waits_in_pair(2, {1, 2})};
  EXPECT_TRUE(is_deadlock(one_step(3), places));
  const RankError error = absence_error(one_step(3), places).value();
  EXPECT_EQ(error.kind, ErrorKind::kDesync);
  EXPECT_EQ(error.rank, 2);
  EXPECT_THAT(
      error.message,
      StartsWith(
          "the ranks wait for each other in different collectives: rank 2 (loss.py:41) is in "
          "all_reduce sum of float64 [2, 2], in the group of ranks 1, 2; ranks 0, 1"));
}

TEST(Stalled, AGroupThatCanGoOnIsNoDeadlock) {
  const std::vector<RankPlace> places = {waits(0), waits_in_pair(1, {1, 2}),
                                         waits_in_pair(2, {1, 2})};
  EXPECT_FALSE(is_deadlock(one_step(3), places));
}

TEST(Stalled, WithoutNotesNothingIsSaid) {
  std::vector<RankPlace> places = {waits(0), waits(1), waits(2)};
  places[2].call.reset();
  EXPECT_FALSE(absence_error(one_step(3), places));
  EXPECT_FALSE(is_deadlock(one_step(3), places));
  places[2] = {2, State::kNotBegun, -1, Phase::kIdle};
  EXPECT_FALSE(is_deadlock(one_step(3), places));
}

TEST(Stalled, AMessageFromAnybodyIsNotJudged) {
  std::vector<RankPlace> places = {waits(0), waits(1), computes(2, 0, State::kFinished)};
  for (RankPlace& place : places) place.call->is_between_two = true;
  EXPECT_FALSE(is_deadlock(one_step(3), places));
}

// Rank `rank` waits in the first message from `source` to `target`.
RankPlace waits_for_message(int rank, int source, int target) {
  RankPlace place = waits_in_pair(rank, {std::min(source, target), std::max(source, target)});
  place.call->kind = rank == source ? "send" : "recv";
  place.call->op.clear();
  place.call->root = rank == source ? target : source;
  place.call->sizes_agree = false;
  place.call->recent = {*place.call};
  return place;
}

TEST(Stalled, AMessageThatNobodySends) {
  const std::vector<RankPlace> places = {computes(0, 0, State::kFinished),
                                         waits_for_message(1, 2, 1),
                                         computes(2, 0, State::kFinished)};
  EXPECT_TRUE(is_deadlock(one_step(3), places));
  const RankError error = absence_error(one_step(3), places).value();
  EXPECT_EQ(error.rank, 2);
  EXPECT_THAT(
      error.message,
      HasSubstr(
          "rank 2 (loss.py:41) has finished the case and never entered the other end of recv of "
          "float64 [2, 2], from rank 2, where rank 1 (loss.py:41) waits"));
  const std::vector<RankPlace> others_wait = {waits(0), waits_for_message(1, 2, 1), waits(2)};
  EXPECT_TRUE(is_deadlock(one_step(3), others_wait));
  EXPECT_EQ(absence_error(one_step(3), others_wait).value().rank, 1);
}

TEST(Stalled, BothEndsOfAMessageGoOn) {
  const std::vector<RankPlace> places = {computes(0, 0, State::kFinished),
                                         waits_for_message(1, 2, 1), waits_for_message(2, 2, 1)};
  EXPECT_FALSE(is_deadlock(one_step(3), places));
  EXPECT_FALSE(difference_error(one_step(3), places));
  EXPECT_FALSE(absence_error(one_step(3), places));
}

TEST(Stalled, AMessageThatIsLongerThanTheTensorThatItIsFor) {
  std::vector<RankPlace> places = {waits_for_message(1, 2, 1), waits_for_message(2, 1, 1)};
  const auto pass = [&](std::vector<std::int64_t> sent, std::vector<std::int64_t> room) {
    for (RankPlace& place : places) {
      place.call->kind = place.rank == 1 ? "send" : "recv";
      place.call->shape = place.rank == 1 ? sent : room;
    }
    return difference_error(one_step(3), places);
  };
  EXPECT_FALSE(pass({2, 2}, {4}));
  EXPECT_FALSE(pass({3}, {4}));
  EXPECT_THAT(pass({5}, {2, 2}).value().message,
              StartsWith("the ranks differ in what should be one message: "));
}

TEST(Stalled, WhatRanksOfNoScenarioShowIsSaidWithoutOne) {
  EXPECT_EQ(unmet_calls_text({{waits(0), computes(1, 0, State::kFinished), waits(2)}}),
            "rank 1 (loss.py:41) has finished and never entered all_reduce sum of float64 [2, 2], "
            "where ranks 0, 2 (loss.py:41) wait");
  std::vector<RankPlace> places = {waits(0), waits(1), waits(2)};
  EXPECT_EQ(unmet_calls_text(places), "");
  places[1].call->shape = {3};
  EXPECT_EQ(unmet_calls_text(places),
            "the ranks differ in what should be one collective: rank 1 (loss.py:41) is in "
            "all_reduce sum of float64 [3]; ranks 0, 2 (loss.py:41) are in all_reduce sum of "
            "float64 [2, 2]");
}

TEST(Stalled, WhoDoesNotTellOfAllGroupsIsNotAbsent) {
  std::vector<RankPlace> places = {waits(0), waits_in_pair(1, {1, 2}), waits_in_pair(2, {1, 2})};
  places[0].call->ranks = {0, 1};
  places[1].call->reported_all = false;
  EXPECT_FALSE(absence_error(one_step(3), places));
  places[1].call->reported_all = true;
  EXPECT_TRUE(absence_error(one_step(3), {{places[0], computes(1, 0)}}));
}

TEST(Stalled, ASilentDifferenceHasItsStep) {
  std::vector<std::vector<NotedCall>> entered;
  for (int rank = 0; rank < 3; ++rank) entered.push_back({*waits(rank).call});
  EXPECT_FALSE(silent_difference(one_step(3), entered));
  entered[1][0].op = "max";
  entered[1][0].step = 0;
  entered[1][0].in_backward = true;
  const RankError error = silent_difference(one_step(3), entered).value();
  EXPECT_EQ(error.rank, 1);
  EXPECT_EQ(error.step, "y");
  EXPECT_TRUE(error.in_backward);
  EXPECT_THAT(error.message, HasSubstr("step y (all_reduce), backward"));
}

TEST(PlaceInStack, IsTheInnermostLineOfTheUsers) {
  const std::string stack =
      "Current thread 0x1 (most recent call first):\n  File "
      "\"/v/lib/site-packages/torch/autograd/graph.py\", line 3 in run\n"
      "  File \"<string>\", line 1 in x\n  File \"/home/me/torch/loss.py\", line 41 in f\n  File "
      "\"/home/me/a.py\", line 2 in g\n"
      "  File \"/v/lib/site-packages/distgrad/ranks/runner.py\", line 9 in run\n";
  EXPECT_EQ(place_in_stack(stack), "loss.py:41 in f");
  EXPECT_EQ(place_in_stack("no stack\n  File \"unfinished"), "");
}

// --- The note, which a rank may fill with anything ---

std::optional<NotedCall> read(const std::string& text, std::uint32_t version = 2) {
  auto slot = std::make_unique<CallSlot>();
  std::memcpy(slot->text, text.data(), std::min(text.size(), sizeof slot->text));
  slot->waits = 1;
  slot->version = version;
  return read_note(*slot);
}

constexpr const char* kNote =
    R"({"kind": "broadcast", "op": "", "dtype": "float32", "shape": [3], "sizes_agree": true, "root": 1, "in_backward": true,
        "place": "a.py:1", "group": "0", "ranks": [0, 1], "is_between_two": false, "number": 7,
        "entered": [{"group": "0", "calls": 7}], "recent": []})";

TEST(Note, IsRead) {
  const NotedCall call = read(kNote).value();
  EXPECT_EQ(call.kind, "broadcast");
  EXPECT_EQ(call.root, 1);
  EXPECT_EQ(call.number, 7u);
  EXPECT_TRUE(call.waits && call.in_backward && call.sizes_agree);
  EXPECT_THAT(call.ranks, ElementsAre(0, 1));
}

TEST(Note, OfAnythingElseIsNone) {
  EXPECT_FALSE(read(kNote, 0)) << "of a rank that writes none";
  EXPECT_FALSE(read(kNote, 3)) << "while it is written";
  EXPECT_FALSE(read(std::string(kNote).substr(0, 80)));
  EXPECT_FALSE(read(std::string(4000, '[')));
  EXPECT_FALSE(read(R"({"kind": 7})"));
  EXPECT_FALSE(read("\xff\xfe"));
  EXPECT_FALSE(read("").value().waits) << "nothing entered yet";
}

}  // namespace
}  // namespace distgrad
