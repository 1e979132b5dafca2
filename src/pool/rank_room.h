// Computes how many ranks this machine can hold.
#pragma once

#include <cstdint>
#include <string>

namespace distgrad {

// Holds limits that all ranks of a case on this machine share, or that hold for each; 0 means
// unlimited.
struct RankRoom {
  std::uint64_t memory_bytes = 0;  // all ranks of a case together
  std::uint64_t stack_bytes = 0;   // a thread's
  std::uint64_t descriptors = 0;   // open in one process
  std::uint64_t tasks = 0;         // processes and threads, of all ranks together
};

RankRoom room_for_ranks();

// Returns why this many ranks cannot be connected with each other, with a remedy, or "" if nothing
// forbids it. It counts only what every rank needs before its first collective, so that no number
// of ranks is refused that could run.
std::string why_no_room(int world_size, const RankRoom&);

}  // namespace distgrad
