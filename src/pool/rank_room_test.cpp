#include "pool/rank_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distgrad {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

TEST(WhyNoRoom, NothingIsLimited) {
  for (const int ranks : {1, 2, 1024}) EXPECT_EQ(why_no_room(ranks, {}), "");
}

TEST(WhyNoRoom, OneRankConnectsWithNobody) {
  EXPECT_EQ(
      why_no_room(1, {.memory_bytes = 1, .stack_bytes = 8 * kMiB, .descriptors = 1, .tasks = 1}),
      "");
}

TEST(WhyNoRoom, MemoryForTheThreadsStacks) {
  const RankRoom room = {.memory_bytes = 20000 * kMiB, .stack_bytes = 8 * kMiB};
  EXPECT_EQ(why_no_room(624, room), "") << "each has more than 32 MiB";
  EXPECT_EQ(why_no_room(1000, room),
            "1000 ranks cannot run on this machine: each may have 20 MiB of memory, and the stacks "
            "of rank 0's threads take 32; --simulate starts none");
  EXPECT_EQ(why_no_room(1000, {.memory_bytes = 20000 * kMiB, .stack_bytes = 2 * kMiB}), "");
}

TEST(WhyNoRoom, ConnectionsOfRank0) {
  EXPECT_EQ(why_no_room(512, {.descriptors = 1023}), "");
  EXPECT_EQ(
      why_no_room(513, {.descriptors = 1023}),
      "513 ranks cannot run on this machine: rank 0 opens 1025 connections, and a process may "
      "open 1023 (ulimit -Hn); --simulate starts none");
}

TEST(WhyNoRoom, Threads) {
  EXPECT_EQ(why_no_room(31, {.tasks = 128}), "");
  EXPECT_EQ(why_no_room(32, {.tasks = 128}),
            "32 ranks cannot run on this machine: they are 129 threads, and there may be 128; "
            "--simulate starts none");
}

TEST(RoomForRanks, ThisMachineHasSomeForAPair) { EXPECT_EQ(why_no_room(2, room_for_ranks()), ""); }

}  // namespace
}  // namespace distgrad
