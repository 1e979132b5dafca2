// Lays out a page of memory shared by the driver and one pool's ranks. It says where each rank is,
// without a system call. The driver looks at it only if a case takes too long or a rank died; the
// ranks also find rank 0's store by it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace distgrad {

// kLoad: the user's code is being imported and set up, which does not count as a case's time.
enum class Phase : std::int32_t { kIdle = 0, kConnect, kForward, kBackward, kSync, kReply, kLoad };

struct RankSlot {
  std::atomic<std::uint64_t> case_id{0};
  std::atomic<std::int64_t> started_ns{0};  // CLOCK_MONOTONIC, when this rank began the case
  // Holds the index into the program's steps; -1: none, steps.size(): the loss.
  std::atomic<std::int32_t> step{-1};
  std::atomic<Phase> phase{Phase::kIdle};
};

// Says which of the user's collectives a rank is in (protocol/noted_call.h reads it). `version` is
// odd while the text is being written, and 0 if the rank writes none.
struct CallSlot {
  std::atomic<std::uint32_t> version{0};
  std::atomic<std::int32_t> waits{0};  // 1: in the call, or waiting for what it began
  char text[4088] = {};                // JSON, ended by a 0
};

inline constexpr int kMaxRanks = 1024;

struct Board {
  std::atomic<std::int32_t> store_port{0};  // set by rank 0 once its store listens on loopback
  RankSlot ranks[kMaxRanks];
  CallSlot calls[kMaxRanks];
};

// Ranks in other languages write at these offsets (docs/protocol.md).
static_assert(std::atomic<std::int64_t>::is_always_lock_free);
static_assert(sizeof(RankSlot) == 24 && offsetof(Board, ranks) == 8);
static_assert(offsetof(RankSlot, started_ns) == 8 && offsetof(RankSlot, step) == 16 &&
              offsetof(RankSlot, phase) == 20);
static_assert(sizeof(CallSlot) == 4096 && offsetof(CallSlot, text) == 8 &&
              offsetof(Board, calls) == 8 + 24 * kMaxRanks);

}  // namespace distgrad
