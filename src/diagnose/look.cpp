#include "diagnose/look.h"

#include <algorithm>
#include <cmath>

#include "gradients/closeness.h"

namespace distgrad {

bool is_of(const Look& look, ReduceOp op) {
  return traits(look.m.call().kind).takes_op && look.m.call().op == op;
}

bool picks(const Look& look) { return is_of(look, ReduceOp::kMin) || is_of(look, ReduceOp::kMax); }

std::optional<double> common_factor(const Look& look) {
  std::optional<double> factor;
  const bool holds =
      for_all(look, [&](const PieceOf&, const PieceOf&, const Block& seen, const Block& right) {
        if (right.is_zero) return seen.is_zero;
        if (!seen.of_right) return false;
        if (!factor) factor = *seen.of_right;
        return *factor == *seen.of_right;
      });
  return holds ? factor : std::nullopt;
}

const std::vector<int>* list_with(const std::vector<std::vector<int>>& partition,
                                  std::size_t rank) {
  for (const std::vector<int>& ranks : partition)
    if (std::ranges::find(ranks, static_cast<int>(rank)) != ranks.end()) return &ranks;
  return nullptr;
}

std::size_t group_size(const Look& look, std::size_t rank) {
  const std::vector<int>* ranks = list_with(look.m.partition, rank);
  return ranks ? ranks->size() : look.m.world_size();
}

bool is_by_group_size(const Look& look, bool divided) {
  return for_all(look, [&](const PieceOf& to, const PieceOf&, const Block& seen,
                           const Block& right) {
    if (right.is_zero) return seen.is_zero;
    const auto size = static_cast<double>(group_size(look, to.rank));
    return seen.of_right && std::abs(*seen.of_right - (divided ? 1 / size : size)) <= 1e-9 * size;
  });
}

bool shares_list(const std::vector<std::vector<int>>& partition, std::size_t a, std::size_t b) {
  const std::vector<int>* ranks = list_with(partition, a);
  return ranks && ranks == list_with(partition, b);
}

bool is_in_group(const Look& look, std::size_t a, std::size_t b) {
  return shares_list(look.m.partition, a, b);
}

std::size_t place_in_group(const Look& look, std::size_t rank) {
  const std::vector<int>* ranks = list_with(look.m.partition, rank);
  if (!ranks) return 0;
  return static_cast<std::size_t>(std::ranges::find(*ranks, static_cast<int>(rank)) -
                                  ranks->begin());
}

bool is_part_of_right(const Look& look) {
  bool lacks = false;
  return for_all(look,
                 [&](const PieceOf&, const PieceOf&, const Block& seen, const Block& right) {
                   if (seen.is_zero) {
                     lacks = lacks || !right.is_zero;
                     return true;
                   }
                   return !right.is_zero && seen.of_right == 1.0;
                 }) &&
         lacks;
}

ElementState state_of(const Look& look, std::size_t rank, std::size_t element) {
  bool is_right = true, is_own = true;
  for (std::size_t k = 0; k < look.m.probes.size(); ++k) {
    const double room = resolution(look.m, k, rank);
    const double seen = look.m.measured.values[k][rank][element];
    const double wanted = look.m.right.values[k][rank][element];
    is_right = is_right && within(seen, wanted, room);
    is_own = is_own && within(seen, look.m.probes[k].rank == rank ? wanted : 0, room);
  }
  return is_right ? ElementState::kRight : is_own ? ElementState::kOwnPart : ElementState::kOther;
}

std::vector<double> values_at(const Look& look, std::size_t rank, std::size_t element) {
  std::vector<double> values;
  if (const std::vector<int>* ranks = list_with(look.m.partition, rank))
    for (const int r : *ranks)
      values.push_back(
          look.m.seen->operands[static_cast<std::size_t>(r)][static_cast<std::int64_t>(element)]);
  return values;
}

bool is_wrong_only_at_ties(const Look& look) {
  return picks(look) && is_wrong_only_where(look, [&](std::size_t r, std::size_t e) {
           const std::vector<double> values = values_at(look, r, e);
           const double extremum =
               is_of(look, ReduceOp::kMax) ? std::ranges::max(values) : std::ranges::min(values);
           return std::ranges::count(values, extremum) > 1;
         });
}

}  // namespace distgrad
