// Reads what a rank notes on the board of its current collective. The rank may write while it is
// read, and may have filled the memory with anything.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "protocol/board.h"

namespace distgrad {

struct NotedCall {
  std::uint32_t version = 0;  // of the note; it changes with anything but `waits`
  bool waits = false;  // true in the call, while waiting for what it began, or if it failed in it
  std::string kind;    // "all_reduce"; empty: none was entered yet
  std::string op;      // "sum"; empty if the kind has none
  std::string dtype;
  std::vector<std::int64_t> shape;
  bool sizes_agree = false;  // the collective takes tensors of one size only
  int root = -1;  // a global rank; for send and recv the other one; -1: the kind has none
  int step = -1;  // of the program, if it is known
  bool in_backward = false;
  std::string place;            // "loss.py:41", or empty
  std::string group;            // the group's name, the same on all its ranks
  std::vector<int> ranks;       // of the group; empty: unknown
  bool is_between_two = false;  // the other ranks are unknown: a message from anybody, or a group
                                // that the rank does not know
  std::uint64_t number = 0;  // among the collectives of its group that the rank has entered, from 1
  // In a note only, counts the collectives of each group that were entered, this one included.
  std::map<std::string, std::uint64_t> entered = {};
  bool reported_all = true;            // only in a note: `entered` has all groups
  std::vector<NotedCall> recent = {};  // only in a note: the last ones of its group, this one
                                       // included
};

// Reads a note's text; an empty text is no collective. Throws BadMessage.
NotedCall read_note(const std::string& text);

// Returns nothing if the rank notes nothing, or while the note cannot be read.
std::optional<NotedCall> read_note(const CallSlot&);

}  // namespace distgrad
