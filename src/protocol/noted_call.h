// What a rank notes on the board of the collective that it is in: read from memory that the rank
// writes while it is read, and may have filled with anything.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "protocol/board.h"

namespace distgrad {

struct NotedCall {
  std::uint32_t version = 0;  // of the note: another one where anything but `waits` has changed
  bool waits = false;         // in the call, or for what it began, or it has failed in it
  std::string kind;           // "all_reduce"; empty: no collective was entered yet
  std::string op;             // "sum"; empty where the kind has none
  std::string dtype;
  std::vector<std::int64_t> shape;
  bool sizes_agree = false;  // whether the collective takes tensors of one size only
  int root = -1;             // a global rank, of send and recv the other one; -1: the kind has none
  int step = -1;             // of the program, if it is known
  bool in_backward = false;
  std::string place;            // "loss.py:41", or empty
  std::string group;            // its name, the same on all its ranks
  std::vector<int> ranks;       // of the group; empty: of which it is not known
  bool is_between_two = false;  // it is not known who else takes part: a message from anybody, a
                                // group that the rank does not know
  std::uint64_t number = 0;  // among the collectives of its group that the rank has entered, from 1
  std::map<std::string, std::uint64_t> entered =
      {};                    // of a note: how many collectives of each group, this one among them
  bool reported_all = true;  // of a note: `entered` has all groups
  std::vector<NotedCall> recent = {};  // of a note: the last ones of its group, this one among them
};

// Of a note's text; that of no collective is empty. Throws BadMessage.
NotedCall read_note(const std::string& text);

// None of a rank that notes nothing, and while the note cannot be read.
std::optional<NotedCall> read_note(const CallSlot&);

}  // namespace distgrad
