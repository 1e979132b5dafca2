#include "pool/blame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distgrad {
namespace {

using State = RankPlace::State;
using testing::HasSubstr;

Program three_steps() {
  Program program;
  program.world_size = 3;
  program.steps.push_back({"x", "", Expression{"a", ""}});
  CollectiveCall call;
  call.kind = CollectiveKind::kAllReduce;
  program.steps.push_back({"y", "", call});
  call.kind = CollectiveKind::kBroadcast;
  program.steps.push_back({"z", "", call});
  return program;
}

RankPlace at(int rank, int step, Phase phase = Phase::kForward) {
  return {rank, State::kRunning, step, phase};
}
RankPlace finished(int rank) { return {rank, State::kFinished, 2, Phase::kReply}; }

TEST(Crash, WhatKilledAPythonProcessIsToldRatherThanItsStack) {
  const std::string output =
      "terminate called\n  what():  size mismatch\nFatal Python error: Aborted\n\n" +
      std::string(2000, 's');
  EXPECT_THAT(crash_error(three_steps(), {0, RankPlace::State::kRunning, 1, Phase::kForward},
                          "died", output)
                  .message,
              testing::EndsWith("it wrote: terminate called   what():  size mismatch"));
  const std::string only_stack =
      "Fatal Python error: Segmentation fault\n\n  File \"bad.py\", line 12 in f\n\nExtension "
      "modules: " +
      std::string(2000, 'm');
  EXPECT_THAT(crash_error(three_steps(), {0, RankPlace::State::kRunning, 1, Phase::kForward},
                          "died", only_stack)
                  .message,
              testing::EndsWith("Segmentation fault    File \"bad.py\", line 12 in f"));
}

TEST(HangError, NamesWhoWaitsWhere) {
  const std::vector<RankPlace> places = {finished(0), finished(1), at(2, 1)};
  const RankError error = hang_error(three_steps(), places, 2);
  EXPECT_EQ(error.kind, ErrorKind::kHang);
  EXPECT_EQ(error.rank, 2);
  EXPECT_EQ(error.step, "y");
  EXPECT_EQ(
      error.message,
      "not done after 2 s: ranks 0, 1 have finished; rank 2 waits in step y (all_reduce), forward");
}

TEST(HangError, RanksInDifferentCollectivesAreOutOfStep) {
  const std::vector<RankPlace> places = {at(0, 1, Phase::kBackward), at(1, 2, Phase::kBackward),
                                         finished(2)};
  const RankError error = hang_error(three_steps(), places, 30);
  EXPECT_EQ(error.kind, ErrorKind::kDesync);
  EXPECT_THAT(
      error.message,
      HasSubstr(
          "rank 0 waits in step y (all_reduce), backward; rank 1 waits in step z (broadcast)"));
}

TEST(HangError, ForwardAndBackwardOfOneStepAreOutOfStep) {
  const std::vector<RankPlace> places = {at(0, 1, Phase::kForward), at(1, 1, Phase::kBackward),
                                         finished(2)};
  EXPECT_EQ(hang_error(three_steps(), places, 30).kind, ErrorKind::kDesync);
}

TEST(HangError, WhoComputesForEverIsToBlameNotWhoWaitsForIt) {
  const std::vector<RankPlace> places = {at(0, 1), at(1, 0), at(2, 1)};
  const RankError error = hang_error(three_steps(), places, 30);
  EXPECT_EQ(error.kind, ErrorKind::kHang);
  EXPECT_EQ(error.rank, 1);
  EXPECT_THAT(
      error.message,
      HasSubstr("ranks 0, 2 wait in step y (all_reduce), forward; rank 1 is in step x, forward"));
}

TEST(HangError, WhoStillConnectsForACallIsNotInAnotherOne) {
  const std::vector<RankPlace> places = {at(0, 1, Phase::kConnect), at(1, 1, Phase::kBackward),
                                         finished(2)};
  const RankError error = hang_error(three_steps(), places, 30);
  EXPECT_EQ(error.kind, ErrorKind::kHang);
  EXPECT_EQ(error.message,
            "not done after 30 s: rank 0 waits in connecting to the other ranks; rank 1 waits in "
            "step y (all_reduce), backward; rank 2 has finished");
  EXPECT_EQ(
      hang_error(three_steps(), std::vector<RankPlace>{at(0, 1, Phase::kConnect), at(1, 2)}, 30)
          .kind,
      ErrorKind::kDesync);
}

TEST(MostStillConnect, WhileNobodyIsFurtherThanWaitingForThem) {
  const auto most = [](std::vector<RankPlace> places) {
    return most_still_connect(three_steps(), places);
  };
  const RankPlace connects = at(0, 1, Phase::kConnect), begins = at(2, -1);
  const RankPlace not_begun = {1, State::kNotBegun, -1, Phase::kIdle};
  EXPECT_TRUE(most({connects, not_begun, begins}));
  EXPECT_FALSE(most({begins, begins, not_begun})) << "its beginning may be what takes so long";
  EXPECT_TRUE(most({connects, at(1, 1), connects})) << "rank 1 waits in the collective";
  EXPECT_FALSE(most({at(0, 1), at(1, 1), connects}));
  EXPECT_FALSE(most({connects, at(1, 0), connects})) << "rank 1 computes";
  EXPECT_FALSE(most({connects, connects, finished(2)}));
  EXPECT_FALSE(most({connects, connects, {2, State::kFinished, -1, Phase::kReply}}));
  EXPECT_FALSE(most({not_begun, not_begun, not_begun}));
}

TEST(HangError, WhoHasNotBegunIsToBlame) {
  const std::vector<RankPlace> places = {
      at(0, 1), {1, State::kNotBegun, 2, Phase::kReply}, at(2, 1)};
  const RankError error = hang_error(three_steps(), places, 30);
  EXPECT_EQ(error.kind, ErrorKind::kHang);
  EXPECT_EQ(error.rank, 1);
  EXPECT_EQ(error.step, "") << "what the board shows of it is the case before";
  EXPECT_THAT(error.message, HasSubstr("rank 1 has not begun"));
}

TEST(HangError, TellsWhetherItIsTheBackwardThatHangs) {
  EXPECT_TRUE(
      hang_error(three_steps(),
                 std::vector<RankPlace>{at(0, 1, Phase::kBackward), at(1, 1, Phase::kBackward)}, 30)
          .in_backward);
  EXPECT_FALSE(
      hang_error(three_steps(), std::vector<RankPlace>{at(0, 1), at(1, 1)}, 30).in_backward);
}

// Its code cannot be loaded: that is no verdict on any collective.
TEST(CrashError, WhoDiesWhileItImportsTheSubjectIsNoCasesDoing) {
  const RankError error =
      crash_error(three_steps(), at(1, -1, Phase::kLoad), "killed by SIGSEGV", "");
  EXPECT_EQ(error.kind, ErrorKind::kSubject);
  EXPECT_EQ(error.message, "killed by SIGSEGV in the subject's import");
}

TEST(CrashError, SaysWhereAndTheLastWords) {
  const RankError error =
      crash_error(three_steps(), at(1, 1, Phase::kBackward), "killed by SIGSEGV", "a\nb\n");
  EXPECT_EQ(error.kind, ErrorKind::kCrash);
  EXPECT_EQ(error.step, "y");
  EXPECT_EQ(error.message, "killed by SIGSEGV in step y (all_reduce), backward; it wrote: a b");
  EXPECT_TRUE(error.in_backward);
}

TEST(PlaceText, KnowsTheLossAndTheBeginning) {
  EXPECT_EQ(place_text(three_steps(), at(0, 3, Phase::kBackward)), "the loss, backward");
  EXPECT_EQ(place_text(three_steps(), at(0, -1)), "the program's beginning");
  EXPECT_EQ(place_text(three_steps(), at(0, 3, Phase::kSync)),
            "the all-reduce of gradients (sync)");
}

RankError raised(int rank, const std::string& message) {
  return {ErrorKind::kException, rank, "y", message};
}
RankError backend(int rank, const std::string& message) {
  return {ErrorKind::kBackend, rank, "y", message};
}

TEST(FirstCause, IsNotAnEchoEvenIfThatCameFirst) {
  const std::vector<RankError> errors = {
      backend(0, "[gloo/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"),
      raised(2, "no backward for product")};
  EXPECT_EQ(first_cause(errors).rank, 2);
}

TEST(FirstCause, IsARanksOwnTimeoutRatherThanThatTheStoreIsGone) {
  const std::vector<RankError> errors = {
      backend(1,
              "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server "
              "shutdown or crash?"),
      {ErrorKind::kHang, 0, "y", "Watchdog caught collective operation timeout"}};
  EXPECT_EQ(first_cause(errors).rank, 0);
}

TEST(FirstCause, IsTheCrashRatherThanWhatOthersSayOfTheConnection) {
  const std::vector<RankError> errors = {backend(0, "something unforeseen"),
                                         {ErrorKind::kCrash, 1, "", "killed by SIGSEGV"}};
  EXPECT_EQ(first_cause(errors).rank, 1);
}

TEST(FirstCause, IsTheLowestRankWhereAllRaiseAlike) {
  const std::vector<RankError> errors = {raised(2, "no"), raised(0, "no"), raised(1, "no")};
  EXPECT_EQ(first_cause(errors).rank, 0);
}

TEST(FirstCause, IsTheFirstDeathWhereOthersDieOfIt) {
  const std::vector<RankError> errors = {{ErrorKind::kCrash, 1, "", "killed by SIGSEGV"},
                                         {ErrorKind::kCrash, 0, "", "killed by SIGABRT"}};
  EXPECT_EQ(first_cause(errors).rank, 1);
}

TEST(Inheritance, WhatASubjectRaisedIsItsOwn) {
  EXPECT_FALSE(may_be_inherited(raised(0, "no backward")));
  EXPECT_TRUE(may_be_inherited(raised(0, "Connection closed by peer")));
  EXPECT_TRUE(may_be_inherited({ErrorKind::kCrash, 0, "", ""}));
  EXPECT_TRUE(may_be_inherited({ErrorKind::kHang, 0, "", ""}));
}

}  // namespace
}  // namespace distgrad
