// Holds what predicates for wrong backwards look at, and answers questions that many of them ask.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "judge/blocks.h"

namespace distgrad {

struct ComparedMaps {
  const Measurement& m;
  const Blocks& seen;   // what was measured
  const Blocks& right;  // what is right
};

bool is_of(const ComparedMaps&, ReduceOp);
bool picks(const ComparedMaps&);  // min or max

// Returns true if holds(to, from, measured block, right block) is true for all blocks.
template <class Holds>
bool for_all(const ComparedMaps& maps, const Holds& holds) {
  for (std::size_t t = 0; t < maps.seen.to.size(); ++t)
    for (std::size_t f = 0; f < maps.seen.from.size(); ++f)
      if (!holds(maps.seen.to[t], maps.seen.from[f], maps.seen.at[t][f], maps.right.at[t][f]))
        return false;
  return true;
}

// Returns true if each block is a copy where `counts` says so, and 0 elsewhere.
template <class Counts>
bool copies_where(const ComparedMaps& maps, const Counts& counts) {
  return for_all(maps,
                 [&](const PieceOf& to, const PieceOf& from, const Block& seen, const Block&) {
                   return counts(to, from) ? seen.of_copy == 1.0 : seen.is_zero;
                 });
}

// Returns the one number by which everything right was multiplied. is_by_group_size tests for what
// factor() makes of the sizes of each group and of the world, in its place.
std::optional<double> common_factor(const ComparedMaps&);
bool is_by_group_size(const ComparedMaps&, double (*factor)(double group, double world));

// Returns the size of the group that the rank is in.
std::size_t group_size(const ComparedMaps&, std::size_t rank);
std::size_t place_in_group(const ComparedMaps&, std::size_t rank);
bool shares_list(const std::vector<std::vector<int>>& partition, std::size_t a, std::size_t b);
// Returns the list that the rank is in, or nullptr if it is in none.
const std::vector<int>* list_with(const std::vector<std::vector<int>>& partition, std::size_t rank);
bool is_in_group(const ComparedMaps&, std::size_t a, std::size_t b);

// Returns true if some right contributions are there, unchanged, and the rest are zero.
bool is_part_of_right(const ComparedMaps&);

// Says how the gradient of one element of a rank's operand compares with the right one.
enum class ElementState { kRight, kOwnPart, kOther };
ElementState state_of(const ComparedMaps&, std::size_t rank, std::size_t element);

// `special(rank, element)` marks elements where the op has no plain derivative. Returns true if all
// other elements are right, or have their own part of it, and some special element has neither.
template <class Special>
bool is_wrong_only_where(const ComparedMaps& maps, const Special& special) {
  bool some = false, all_right = true, all_own = true;
  for (std::size_t r = 0; r < maps.m.world_size(); ++r)
    for (std::size_t e = 0; e < static_cast<std::size_t>(maps.m.seen->operands[r].size()); ++e) {
      const ElementState state = state_of(maps, r, e);
      if (special(r, e)) {
        some = some || state == ElementState::kOther;
        continue;
      }
      all_right = all_right && state == ElementState::kRight;
      all_own = all_own && (state == ElementState::kOwnPart || (state == ElementState::kRight));
      if (!all_right && !all_own) return false;
    }
  return some;
}

// Returns the operands' values at one element, over the rank's group.
std::vector<double> values_at(const ComparedMaps&, std::size_t rank, std::size_t element);

// Returns true if no cotangent gives anything.
bool gives_zeros(const ComparedMaps&);

// Returns true, for min and max, if only elements where ranks tie for the extremum are wrong.
bool is_wrong_only_at_ties(const ComparedMaps&);
bool is_wrong_only_at_zeros(const ComparedMaps&);  // of a product's operand

}  // namespace distgrad
