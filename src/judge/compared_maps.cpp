#include "judge/compared_maps.h"

#include <algorithm>
#include <cmath>

#include "judge/closeness.h"

namespace distgrad {

bool is_of(const ComparedMaps& maps, ReduceOp op) {
  return traits(maps.m.call().kind).takes_op && maps.m.call().op == op;
}

bool picks(const ComparedMaps& maps) {
  return is_of(maps, ReduceOp::kMin) || is_of(maps, ReduceOp::kMax);
}

std::optional<double> common_factor(const ComparedMaps& maps) {
  std::optional<double> factor;
  const bool holds =
      for_all(maps, [&](const PieceOf&, const PieceOf&, const Block& seen, const Block& right) {
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

std::size_t group_size(const ComparedMaps& maps, std::size_t rank) {
  const std::vector<int>* ranks = list_with(maps.m.partition, rank);
  return ranks ? ranks->size() : maps.m.world_size();
}

bool is_by_group_size(const ComparedMaps& maps, double (*factor)(double group, double world)) {
  const auto world = static_cast<double>(maps.m.world_size());
  return for_all(
      maps, [&](const PieceOf& to, const PieceOf&, const Block& seen, const Block& right) {
        if (right.is_zero) return seen.is_zero;
        const auto size = static_cast<double>(group_size(maps, to.rank));
        return seen.of_right && std::abs(*seen.of_right - factor(size, world)) <= 1e-9 * size;
      });
}

bool shares_list(const std::vector<std::vector<int>>& partition, std::size_t a, std::size_t b) {
  const std::vector<int>* ranks = list_with(partition, a);
  return ranks && ranks == list_with(partition, b);
}

bool is_in_group(const ComparedMaps& maps, std::size_t a, std::size_t b) {
  return shares_list(maps.m.partition, a, b);
}

std::size_t place_in_group(const ComparedMaps& maps, std::size_t rank) {
  const std::vector<int>* ranks = list_with(maps.m.partition, rank);
  if (!ranks) return 0;
  return static_cast<std::size_t>(std::ranges::find(*ranks, static_cast<int>(rank)) -
                                  ranks->begin());
}

bool is_part_of_right(const ComparedMaps& maps) {
  bool lacks = false;
  return for_all(maps,
                 [&](const PieceOf&, const PieceOf&, const Block& seen, const Block& right) {
                   if (seen.is_zero) {
                     lacks = lacks || !right.is_zero;
                     return true;
                   }
                   return !right.is_zero && seen.of_right == 1.0;
                 }) &&
         lacks;
}

ElementState state_of(const ComparedMaps& maps, std::size_t rank, std::size_t element) {
  bool is_right = true, is_own = true;
  for (std::size_t k = 0; k < maps.m.probes.size(); ++k) {
    const double room = resolution(maps.m, k, rank);
    const double seen = maps.m.measured.values[k][rank][element];
    const double wanted = maps.m.right.values[k][rank][element];
    is_right = is_right && within(seen, wanted, room);
    is_own = is_own && within(seen, maps.m.probes[k].rank == rank ? wanted : 0, room);
  }
  return is_right ? ElementState::kRight : is_own ? ElementState::kOwnPart : ElementState::kOther;
}

std::vector<double> values_at(const ComparedMaps& maps, std::size_t rank, std::size_t element) {
  std::vector<double> values;
  if (const std::vector<int>* ranks = list_with(maps.m.partition, rank))
    for (const int r : *ranks)
      values.push_back(
          maps.m.seen->operands[static_cast<std::size_t>(r)][static_cast<std::int64_t>(element)]);
  return values;
}

bool gives_zeros(const ComparedMaps& maps) {
  return for_all(maps, [](const PieceOf&, const PieceOf&, const Block& seen, const Block&) {
    return seen.is_zero;
  });
}

bool is_wrong_only_at_zeros(const ComparedMaps& maps) {
  return is_of(maps, ReduceOp::kProduct) &&
         is_wrong_only_where(maps, [&](std::size_t r, std::size_t e) {
           return maps.m.seen->operands[r][static_cast<std::int64_t>(e)] == 0;
         });
}

bool is_wrong_only_at_ties(const ComparedMaps& maps) {
  return picks(maps) && is_wrong_only_where(maps, [&](std::size_t r, std::size_t e) {
           const std::vector<double> values = values_at(maps, r, e);
           const double extremum =
               is_of(maps, ReduceOp::kMax) ? std::ranges::max(values) : std::ranges::min(values);
           return std::ranges::count(values, extremum) > 1;
         });
}

}  // namespace distgrad
