// Keeps a board in two places: what a rank writes on its host's board is carried to rank 0's, and
// from there to the other ranks what they look for.
#pragma once

#include <cstdint>
#include <string>

#include "base/memory_file.h"
#include "protocol/board.h"

namespace distgrad {

// Holds places of the board and their bytes, ready to be sent.
using BoardPatches = std::string;

// Finds, on a rank's host, what the rank has changed.
class BoardWatch {
 public:
  BoardWatch(MappedMemory board, int rank, int world_size);

  // Returns the changes since the last call; empty where there are none.
  BoardPatches changes();

 private:
  bool read_slot();
  bool read_note();

  MappedMemory memory_;
  const Board& board_;
  int rank_;
  bool counts_calls_;
  std::int32_t port_ = 0;
  std::uint64_t calls_ = 0;
  std::uint64_t case_id_ = 0;
  std::int64_t started_ns_ = 0;
  std::int32_t step_ = -1;
  Phase phase_ = Phase::kIdle;
  std::uint32_t version_ = 0;
  std::int32_t waits_ = 0;
  std::string note_;
};

// Puts a rank's changes onto the board and ignores what is not that rank's. Returns whether other
// ranks may wait for a change: the port, a case or a driven call that the rank is through with.
bool apply_changes(Board& board, int rank, const BoardPatches& patches);

// Returns what other ranks look for of that rank.
BoardPatches public_part(const Board& board, int rank, int world_size);

// Puts it onto the board of another rank's host.
void apply_public_part(Board& board, const BoardPatches& patches);

}  // namespace distgrad
