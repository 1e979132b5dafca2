#include "diagnose/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "diagnose/phrases.h"
#include "gradients/closeness.h"

namespace distgrad {
namespace {

using enum CollectiveKind;

// --- Questions that many ask ---

bool keeps_shape(const CollectiveCall& c) {
  return c.kind == kAllReduce || c.kind == kReduce || c.kind == kBroadcast || c.kind == kCopy;
}
bool is_of(const Look& look, ReduceOp op) {
  return traits(look.m.call().kind).takes_op && look.m.call().op == op;
}
bool picks(const Look& look) { return is_of(look, ReduceOp::kMin) || is_of(look, ReduceOp::kMax); }

// holds(to, from, measured block, right block) for all.
template <class Holds>
bool for_all(const Look& look, const Holds& holds) {
  for (std::size_t t = 0; t < look.seen.to.size(); ++t)
    for (std::size_t f = 0; f < look.seen.from.size(); ++f)
      if (!holds(look.seen.to[t], look.seen.from[f], look.seen.at[t][f], look.right.at[t][f]))
        return false;
  return true;
}

// A copy where `counts` says so, 0 elsewhere.
template <class Counts>
bool copies_where(const Look& look, const Counts& counts) {
  return for_all(look,
                 [&](const PieceOf& to, const PieceOf& from, const Block& seen, const Block&) {
                   return counts(to, from) ? seen.of_copy == 1.0 : seen.is_zero;
                 });
}

// The one number by which all that is right was multiplied; `size` in its place stands for each
// group's own size, and 1 / size for that.
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

std::size_t group_size(const Look& look, std::size_t rank) {
  for (const auto& ranks : look.m.partition)
    if (std::find(ranks.begin(), ranks.end(), static_cast<int>(rank)) != ranks.end())
      return ranks.size();
  return look.m.world_size();
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
  return std::any_of(partition.begin(), partition.end(), [&](const std::vector<int>& ranks) {
    const auto has = [&](std::size_t r) {
      return std::find(ranks.begin(), ranks.end(), static_cast<int>(r)) != ranks.end();
    };
    return has(a) && has(b);
  });
}
bool is_in_group(const Look& look, std::size_t a, std::size_t b) {
  return shares_list(look.m.partition, a, b);
}

std::size_t place_in_group(const Look& look, std::size_t rank) {
  for (const auto& ranks : look.m.partition)
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (ranks[i] == static_cast<int>(rank)) return i;
  return 0;
}

// Some of what is right is there as it should be, and the rest of it is not there.
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

// By element of one rank's operand: how what it got compares with what is right.
enum class ElementState { kRight, kOwnPart, kOther };
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

// `special(rank, element)`: where the op has no plain derivative. Whether all else is right, or the
// own part of it, and some special element is neither.
template <class Special>
bool is_wrong_only_where(const Look& look, const Special& special) {
  bool some = false, all_right = true, all_own = true;
  for (std::size_t r = 0; r < look.m.world_size(); ++r)
    for (std::size_t e = 0; e < static_cast<std::size_t>(look.m.seen->operands[r].size()); ++e) {
      const ElementState state = state_of(look, r, e);
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

// The operands' values at one element, over the rank's group.
std::vector<double> values_at(const Look& look, std::size_t rank, std::size_t element) {
  std::vector<double> values;
  for (const auto& ranks : look.m.partition)
    if (std::find(ranks.begin(), ranks.end(), static_cast<int>(rank)) != ranks.end())
      for (const int r : ranks)
        values.push_back(
            look.m.seen->operands[static_cast<std::size_t>(r)][static_cast<std::int64_t>(element)]);
  return values;
}

// --- Special names ---

std::string gives_nothing(const Look& look) {
  const bool is_zero = for_all(look, [](const PieceOf&, const PieceOf&, const Block& seen,
                                        const Block&) { return seen.is_zero; });
  if (!is_zero) return "";
  return look.m.measured.is_none ? "gave no gradient (None) to the operand."
                                 : "gave the operand zeros for every cotangent.";
}

// Where every rank is alone in its group there is nobody whose cotangent could be dropped.
bool has_peers(const Look& look) {
  return std::any_of(look.m.partition.begin(), look.m.partition.end(),
                     [](const auto& ranks) { return ranks.size() > 1; });
}

std::string passes_own_on(const Look& look) {
  if (!keeps_shape(look.m.call()) || !has_peers(look)) return "";
  const bool holds = copies_where(
      look, [](const PieceOf& to, const PieceOf& from) { return to.rank == from.rank; });
  return holds ? "passed the local cotangent on and dropped the other ranks'." : "";
}

// What is right instead, and whether it is right for some loss, depends on the call.
template <CollectiveKind kind>
std::string passes_own_on_of(const Look& look) {
  return look.m.call().kind == kind ? passes_own_on(look) : "";
}

std::string passes_own_on_of_sum(const Look& look) {
  return is_of(look, ReduceOp::kSum) ? passes_own_on_of<kAllReduce>(look) : "";
}

// By how much a backward multiplied what is the rank's own.
struct Multiple {
  std::optional<double> number;  // on all ranks; none where it differs with the group's size
  bool is_group_size = false;

  bool is_one() const { return number == 1 && !is_group_size; }
  std::string text() const {
    return is_group_size ? "the group's size" : fmt::format("{:.6g}", *number);
  }
};

// Of a backward that gives a rank a multiple of its own and nothing of the others'; nothing where
// it does not, or where the multiple is neither one number nor the group's size.
std::optional<Multiple> multiple_of_own(const Look& look, std::optional<double> Block::*what) {
  std::optional<double> factor;
  bool is_size = true, is_one_number = true;
  const bool is_alone = for_all(
      look, [&](const PieceOf& to, const PieceOf& from, const Block& seen, const Block& right) {
        if (right.is_zero || to.rank != from.rank) return seen.is_zero;
        const std::optional<double>& times = seen.*what;
        if (!times) return false;
        is_one_number = is_one_number && (!factor || *factor == *times);
        is_size = is_size && *times == static_cast<double>(group_size(look, to.rank));
        factor = times;
        return true;
      });
  if (!is_alone || !factor || (!is_size && !is_one_number)) return std::nullopt;
  return Multiple{is_one_number ? factor : std::nullopt, is_size};
}

std::string multiplies_own_by_size(const Look& look) {
  if (look.m.call().kind != kAllReduce || !is_of(look, ReduceOp::kSum) || !has_peers(look))
    return "";
  const auto times = multiple_of_own(look, &Block::of_copy);
  return times && times->is_group_size
             ? "multiplied the local cotangent by the group's size and dropped the other ranks'."
             : "";
}

std::string keeps_own_slice_times(const Look& look, bool (*is_meant)(const Multiple&)) {
  if (look.m.call().kind != kAllGather || !has_peers(look)) return "";
  const auto times = multiple_of_own(look, &Block::of_right);
  if (!times || !is_meant(*times)) return "";
  return fmt::format(
      "kept the slice that the rank's own loss saw{} and dropped what the other ranks' losses saw "
      "of it.",
      times->is_one() ? "" : fmt::format(", multiplied it by {},", times->text()));
}

std::string keeps_own_slice(const Look& look) {
  return keeps_own_slice_times(look, [](const Multiple& times) { return times.is_one(); });
}

std::string keeps_own_slice_times_size(const Look& look) {
  return keeps_own_slice_times(look, [](const Multiple& times) { return times.is_group_size; });
}

std::string keeps_own_slice_times_any(const Look& look) {
  return keeps_own_slice_times(look, [](const Multiple&) { return true; });
}

std::string forgets_op(const Look& look) {
  const CollectiveCall& call = look.m.call();
  if (!traits(call.kind).takes_op || call.op == ReduceOp::kSum) return "";
  const bool holds = copies_where(look, [&](const PieceOf& to, const PieceOf& from) {
    if (!is_in_group(look, to.rank, from.rank)) return false;
    if (call.kind == kReduce)
      return place_in_group(look, from.rank) == static_cast<std::size_t>(call.root);
    if (call.kind == kReduceScatter) return to.piece == place_in_group(look, from.rank);
    return true;
  });
  return holds ? "is that of a sum, whatever the op was." : "";
}

bool sums_to_all(const Look& look) {
  const CollectiveCall& call = look.m.call();
  return traits(call.kind).takes_op && (call.op == ReduceOp::kSum || call.op == ReduceOp::kAvg ||
                                        call.op == ReduceOp::kPremulSum);
}

std::string sums_twice(const Look& look) {
  if (!sums_to_all(look) || !is_by_group_size(look, false)) return "";
  return "is the right one multiplied by the group's size, as if summed twice.";
}

std::string is_scaled(const Look& look) {
  if (is_by_group_size(look, false)) return "is the right one multiplied by the group's size.";
  if (is_by_group_size(look, true)) return "is the right one divided by the group's size.";
  const auto factor = common_factor(look);
  if (!factor || *factor == 1) return "";
  return "is " + factor_of_exact(*look.m.program, *factor).of("the right one") + ".";
}

std::string sums_over_all(const Look& look) {
  if (!keeps_shape(look.m.call())) return "";
  const bool holds = copies_where(look, [&](const PieceOf& to, const PieceOf& from) {
    return is_in_group(look, to.rank, from.rank);
  });
  return holds ? "summed the cotangents over the ranks once more than the chain rule does." : "";
}

// Every rank has what is right for all ranks, summed.
std::string reduces_twice(const Look& look) {
  if (look.m.call().kind == kSlice || look.m.call().kind == kCopy) return "";
  for (const auto& ranks : look.m.partition)
    for (std::size_t k = 0; k < look.m.probes.size(); ++k) {
      const auto first = static_cast<std::size_t>(ranks[0]);
      std::vector<double> sum(look.m.right.values[k][first].size(), 0.0);
      double room = 0;
      for (const int r : ranks) {
        const std::vector<double>& one = look.m.right.values[k][static_cast<std::size_t>(r)];
        if (one.size() != sum.size()) return "";
        for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += one[e];
        room += resolution(look.m, k, static_cast<std::size_t>(r));
      }
      for (const int r : ranks)
        if (!difference(look.m.measured.values[k][static_cast<std::size_t>(r)], sum,
                        [&](std::size_t) { return room; })
                 .equal)
          return "";
    }
  return "is the right one, summed over the ranks once more.";
}

// --- General names ---

std::string gives_ties_otherwise(const Look& look) {
  if (!picks(look)) return "";
  const bool holds = is_wrong_only_where(look, [&](std::size_t r, std::size_t e) {
    const std::vector<double> values = values_at(look, r, e);
    const double extremum = is_of(look, ReduceOp::kMax)
                                ? *std::max_element(values.begin(), values.end())
                                : *std::min_element(values.begin(), values.end());
    return std::count(values.begin(), values.end(), extremum) > 1;
  });
  return holds ? "gave ranks that tie for the extremum another share than an even one." : "";
}

std::string divides_at_zero(const Look& look) {
  if (!is_of(look, ReduceOp::kProduct)) return "";
  const bool holds = is_wrong_only_where(look, [&](std::size_t r, std::size_t e) {
    return look.m.seen->operands[r][static_cast<std::int64_t>(e)] == 0;
  });
  return holds ? "divided the product by the operand, which gives NaN or 0 where the operand is 0."
               : "";
}

std::string leaves_rest_off_root(const Look& look) {
  if (look.m.call().kind != kBroadcast) return "";
  bool some = false;
  const bool holds =
      for_all(look, [&](const PieceOf& to, const PieceOf&, const Block& seen, const Block& right) {
        if (place_in_group(look, to.rank) == static_cast<std::size_t>(look.m.call().root))
          return right.is_zero ? seen.is_zero : seen.of_right == 1.0;
        some = some || !seen.is_zero;
        return true;
      });
  return holds && some ? "left off root what a reduction to root leaves in its buffer, where the "
                         "gradient is 0."
                       : "";
}

// Of the cotangents that count: those that a target piece lacks, by rank of the world.
std::set<std::size_t> lacking(const Look& look) {
  std::set<std::size_t> ranks;
  for_all(look, [&](const PieceOf&, const PieceOf& from, const Block& seen, const Block& right) {
    if (seen.is_zero && !right.is_zero) ranks.insert(from.rank);
    return true;
  });
  return ranks;
}

// Whether exactly the contributions that `lacks` names are absent.
template <class Lacks>
bool lacks_exactly(const Look& look, const Lacks& lacks) {
  return for_all(
      look, [&](const PieceOf& to, const PieceOf& from, const Block& seen, const Block& right) {
        return right.is_zero || seen.is_zero == lacks(to, from);
      });
}

bool counts_own_alone(const Look& look) {
  return lacks_exactly(look,
                       [](const PieceOf& to, const PieceOf& from) { return to.rank != from.rank; });
}

bool lacks_whole_ranks(const Look& look) {
  const std::set<std::size_t> ranks = lacking(look);
  return lacks_exactly(
      look, [&](const PieceOf&, const PieceOf& from) { return ranks.contains(from.rank); });
}

// A ring of sends to the next rank brings the cotangents of the ranks before one, nearest first:
// cut short, those of the ranks just after it are lacking, and the other way round.
std::string stops_ring_early(const Look& look) {
  if (!is_part_of_right(look) || counts_own_alone(look) || lacks_whole_ranks(look)) return "";
  const std::size_t size = group_size(look, 0);
  for (std::size_t hops = 1; hops + 1 < size; ++hops)
    for (const bool forwards : {true, false}) {
      const auto is_not_reached = [&](const PieceOf& to, const PieceOf& from) {
        const std::size_t n = group_size(look, to.rank);
        const std::size_t after =
            (place_in_group(look, from.rank) + n - place_in_group(look, to.rank)) % n;
        return after != 0 && (forwards ? after <= hops : after + hops >= n);
      };
      if (!lacks_exactly(look, is_not_reached)) continue;
      return fmt::format(
          "lacks on each rank the cotangent{} of the {} {} it in the group, as where a ring that "
          "sends to the {} rank stops {} early.",
          hops == 1 ? "" : "s", hops == 1 ? "rank" : fmt::format("{} ranks", hops),
          forwards ? "after" : "before", forwards ? "next" : "previous",
          hops == 1 ? "one hop" : fmt::format("{} hops", hops));
    }
  return "";
}

std::string lacks_some(const Look& look) {
  if (!is_part_of_right(look)) return "";
  if (counts_own_alone(look))
    return "counted the rank's own cotangent alone and dropped the other ranks'.";
  if (lacks_exactly(look,
                    [](const PieceOf& to, const PieceOf& from) { return to.rank == from.rank; }))
    return "counted the other ranks' cotangents and left out the rank's own.";
  if (lacks_whole_ranks(look)) {
    const std::set<std::size_t> ranks = lacking(look);
    std::vector<std::string> words;
    for (const std::size_t r : ranks) words.push_back(std::to_string(r));
    return fmt::format("lacks the cotangent{} of {} {}.", ranks.size() == 1 ? "" : "s",
                       ranks.size() == 1 ? "rank" : "ranks", enumeration(words));
  }
  std::set<std::size_t> on, all;
  for_all(look, [&](const PieceOf& to, const PieceOf&, const Block& seen, const Block& right) {
    if (!right.is_zero) all.insert(to.rank);
    if (seen.is_zero && !right.is_zero) on.insert(to.rank);
    return true;
  });
  return fmt::format("lacks some of the ranks' cotangents on {}.",
                     on == all ? "every rank" : "some ranks");
}

std::vector<int> ranks_lacking(const Look& look) {
  if (!lacks_whole_ranks(look)) return {};
  const std::set<std::size_t> ranks = lacking(look);
  return {ranks.begin(), ranks.end()};
}

// Right in the lists of which root has the same number as in the world, and nothing in the others.
std::string forgets_root_elsewhere(const Look& look) {
  if (!traits(look.m.call().kind).takes_root) return "";
  const int root = look.m.call().root;
  const auto is_same = [&](std::size_t rank) {
    for (const auto& ranks : look.m.partition)
      if (std::find(ranks.begin(), ranks.end(), static_cast<int>(rank)) != ranks.end())
        return ranks[static_cast<std::size_t>(root)] == root;
    return false;
  };
  bool has_same = false, has_others = false;
  const bool holds =
      for_all(look, [&](const PieceOf& to, const PieceOf&, const Block& seen, const Block& right) {
        if (right.is_zero) return seen.is_zero;
        const bool same = is_same(to.rank);
        has_same = has_same || same;
        has_others = has_others || !same;
        return same ? seen.of_right == 1.0 : seen.is_zero;
      });
  return holds && has_same && has_others
             ? "is right in the groups whose root has the same number in the group as in the "
               "world, and gives nothing in the others."
             : "";
}

// Of each rank's cotangents those count that are of its own list in another group of the program.
std::string counts_in_other_group(const Look& look) {
  for (const Group& group : look.m.program->groups) {
    const auto partition = look.m.program->partition_of(group.name);
    const std::size_t n = look.m.world_size();
    std::vector<std::vector<char>> counts(n, std::vector<char>(n, 0)), due = counts;
    bool crosses = false;
    bool holds = for_all(
        look, [&](const PieceOf& to, const PieceOf& from, const Block& seen, const Block& right) {
          counts[to.rank][from.rank] |= static_cast<char>(!seen.is_zero);
          due[to.rank][from.rank] |= static_cast<char>(!right.is_zero);
          return seen.is_zero || seen.of_copy == 1.0 || seen.of_right == 1.0;
        });
    holds = holds && counts != due;
    for (std::size_t r = 0; r < n; ++r)
      for (std::size_t k = 0; k < n; ++k) {
        holds = holds && due[r][k] == is_in_group(look, r, k) &&
                counts[r][k] == shares_list(partition, r, k);
        crosses = crosses || (r != k && counts[r][k]);
      }
    if (holds && crosses)
      return fmt::format(
          "counted the cotangents of the ranks of the group {}, instead of those of the "
          "call's own group.",
          group.name);
  }
  return "";
}

// Every contribution is a whole piece, as it should be, but some are other pieces than is right.
std::string takes_other_pieces(const Look& look) {
  std::optional<double> number;  // with which pieces count
  const bool is_moving =
      for_all(look, [&](const PieceOf&, const PieceOf&, const Block&, const Block& right) {
        if (right.is_zero) return true;
        if (!number) number = right.of_copy;
        return right.of_copy && *number == *right.of_copy;
      });
  bool others = false;
  const bool holds =
      for_all(look, [&](const PieceOf&, const PieceOf&, const Block& seen, const Block& right) {
        others = others || (right.is_zero && !seen.is_zero);
        return seen.is_zero || seen.of_right == 1.0 ||
               (is_moving && seen.of_copy && seen.of_copy == number);
      });
  if (!holds || !others) return "";
  return look.m.call().kind == kSlice
             ? "put cotangents into other places than the rank's own slice of its operand."
             : "gave ranks other slices, or the cotangents of other ranks, than they are due.";
}

// --- Not linear ---

bool is_joint_response(const Look& look, ReduceOp op) {
  for (std::size_t k = look.m.first_joint(); k < look.m.cotangents.size(); ++k)
    for (const auto& ranks : look.m.partition)
      for (const int r : ranks) {
        const auto rank = static_cast<std::size_t>(r);
        std::vector<double> wanted = look.m.cotangents[k][static_cast<std::size_t>(ranks[0])];
        if (wanted.size() != look.m.measured.values[k][rank].size()) return false;
        double scale = largest_magnitude(wanted);
        for (std::size_t i = 1; i < ranks.size(); ++i) {
          const std::vector<double>& next =
              look.m.cotangents[k][static_cast<std::size_t>(ranks[i])];
          for (std::size_t e = 0; e < wanted.size(); ++e)
            wanted[e] = op == ReduceOp::kProduct ? wanted[e] * next[e]
                        : op == ReduceOp::kMax   ? std::max(wanted[e], next[e])
                                                 : std::min(wanted[e], next[e]);
          scale = std::max(scale, largest_magnitude(wanted));
        }
        const double room =
            resolution(look.m, k, rank) + 16 * unit_roundoff(look.m.program->dtype) * scale;
        if (!difference(look.m.measured.values[k][rank], wanted, [&](std::size_t) {
               return room;
             }).equal)
          return false;
      }
  return true;
}

std::string applies_same_op(const Look& look) {
  if (!traits(look.m.call().kind).takes_op || !keeps_shape(look.m.call())) return "";
  if (!picks(look) && !is_of(look, ReduceOp::kProduct)) return "";
  return is_joint_response(look, look.m.call().op)
             ? "applied the collective's own reduction to the cotangents."
             : "";
}

// Whether every answer is a number of that dtype: then it was rounded to it last.
bool answers_in(const Look& look, DType narrow) {
  for (std::size_t k = look.m.first_joint(); k < look.m.cotangents.size(); ++k)
    for (const auto& values : look.m.measured.values[k])
      for (const double v : values)
        if (rounded_to(narrow, v) != v) return false;
  return true;
}

// How often either of the two of sixteen bits rounded on the way nobody knows, unless the answer
// shows it.
std::string_view name_of_narrow(const Look& look, DType narrow) {
  if (narrow == DType::kFloat32) return "float32";
  if (answers_in(look, DType::kBFloat16)) return "bfloat16";
  return answers_in(look, DType::kFloat16) ? "float16" : "float16 or bfloat16";
}

// What is right but for the rounding of a narrower dtype.
template <DType narrow>
std::string goes_through(const Look& look) {
  if (unit_roundoff(narrow) <= unit_roundoff(look.m.program->dtype)) return "";
  const auto ranks = static_cast<double>(look.m.world_size());
  for (std::size_t k = 0; k < look.m.cotangents.size(); ++k) {
    double scale = 0;
    for (const auto& values : look.m.right.values[k])
      scale = std::max(scale, largest_magnitude(values));
    for (const auto& values : look.m.cotangents[k])
      scale = std::max(scale, largest_magnitude(values));
    for (std::size_t r = 0; r < look.m.world_size(); ++r) {
      const double room = resolution(look.m, k, r) + (2 + ranks) * unit_roundoff(narrow) * scale;
      if (!difference(look.m.measured.values[k][r], look.m.right.values[k][r], [&](std::size_t) {
             return room;
           }).equal)
        return "";
    }
  }
  return fmt::format("went through {}.", name_of_narrow(look, narrow));
}

// The same of a backward whose own numbers were rounded, so that even cotangents of few bits are
// not answered rightly: every answer is a number of that dtype, which another mistake's would not
// be.
template <DType narrow>
std::string answers_rounded(const Look& look) {
  return answers_in(look, narrow) ? goes_through<narrow>(look) : "";
}

std::string is_not_linear(const Look& look) {
  return "is not linear in the cotangents, as every right one is: " + look.m.shown + ".";
}

constexpr std::string_view kZeroRemedy =
    "Multiply the other ranks' operands instead of dividing: at a zero the derivative is the "
    "product of the others.";
constexpr std::string_view kPrecisionRemedy =
    "Keep the cotangent in its own dtype, or accept the error with an explicit tolerance.";
constexpr std::string_view kTwiceRemedy =
    "Sum the cotangents once: look for a second all_reduce of the same gradient, or a missing "
    "division.";

constexpr std::string_view kSliceRemedy =
    "Else add up the ranks' cotangents of each slice: a reduce_scatter of the whole cotangent, as "
    "torch.distributed.nn.functional.all_gather does, or all_reduce and then slice.";

constexpr std::array kSpecial = std::to_array<WrongBackward>({
    {"precision", answers_rounded<DType::kFloat32>, "", "", kPrecisionRemedy},
    {"precision", answers_rounded<DType::kFloat16>, "", "", kPrecisionRemedy},
    {"precision", answers_rounded<DType::kBFloat16>, "", "", kPrecisionRemedy},
    {"no-gradient", gives_nothing, "", "",
     "Use a differentiable collective: a plain torch.distributed call into a new tensor is cut off "
     "from the graph."},
    {"identity-backward", passes_own_on_of_sum, "the loss is one loss that every rank computes",
     "replicated",
     "Else sum the cotangents over the group in backward: torch.distributed.nn.functional and "
     "torch.distributed._functional_collectives do, the plain in-place collectives do not."},
    {"identity-backward", passes_own_on_of<kBroadcast>, "", "",
     "Sum the cotangents over the group onto the source, and give the other ranks zeros: "
     "torch.distributed.nn.functional does, the plain broadcast and that of "
     "torch.distributed._functional_collectives do not."},
    {"identity-backward", passes_own_on_of<kReduce>, "", "",
     "Give every rank the cotangent of root, times the op's own derivative: what the other ranks "
     "got back is not used."},
    {"identity-backward", passes_own_on, "", "",
     "Sum the cotangents over the group in backward, and multiply by the op's own derivative."},
    {"identity-backward", multiplies_own_by_size,
     "all ranks compute one and the same loss and their sum counts", "",
     "Else sum the cotangents over the group in backward: torch.distributed.nn.functional and "
     "torch.distributed._functional_collectives do."},
    {"own-slice", keeps_own_slice, "the loss is one loss that every rank computes from all slices",
     "replicated", kSliceRemedy},
    {"own-slice", keeps_own_slice_times_size,
     "all ranks compute one and the same loss from all slices and their sum counts", "",
     kSliceRemedy},
    {"own-slice", keeps_own_slice_times_any, "", "",
     "Add up the ranks' cotangents of each slice, and multiply by nothing."},
    {"forgotten-op", forgets_op, "", "",
     "Divide by the group's size where the op is avg, multiply by the factor where it is "
     "premul_sum; for max, min and product reduce locally what an all_gather brings."},
    {"double-reduction", sums_twice, "", "", kTwiceRemedy, "scaled"},
    {"scaled", is_scaled, "", "",
     "Sum or divide in one place only: the loss, the collective or the gradient's "
     "synchronisation."},
    {"double-reduction", sums_over_all,
     "the operand is one replicated value of which each rank's loss sees a share", "",
     "Sum in one place only: here, or where the gradient is synchronised."},
    {"double-reduction", reduces_twice, "", "", kTwiceRemedy},
});

constexpr std::array kGeneral = std::to_array<WrongBackward>({
    {"tie", gives_ties_otherwise, "", "",
     "Share the cotangent among the ranks that tie, so that the shares add up to it once."},
    {"zero-input", divides_at_zero, "", "", kZeroRemedy},
    {"wrong-group", counts_in_other_group, "", "",
     "Hand the group of the forward call to the collective in backward, too."},
    {"missing-reduction", forgets_root_elsewhere, "", "",
     "Look for a rank within the group, as get_rank(group) gives it, that is compared with src or "
     "dst, which are ranks of the world; else for a detach, a no_grad or a branch on a rank."},
    {"missing-reduction", stops_ring_early, "", "",
     "Each part has to travel one hop fewer than the group has ranks: look at the bounds of that "
     "loop, and at what is added before its first and after its last hop."},
    {"missing-reduction",
     lacks_some,
     "",
     "",
     "Let the cotangents of all ranks travel back and add them up: the backward of every "
     "collective is a collective itself. Look for a detach, a no_grad or a branch on a rank, too.",
     {},
     ranks_lacking},
    {"stale-or-aliased", leaves_rest_off_root, "", "",
     "Return zeros on the ranks that are not root: what they passed in was not used."},
    {"wrong-slice", takes_other_pieces, "", "",
     "Cut the gradient at the rank's own place in the group, and send each part back to the rank "
     "that the value came from."},
});

constexpr std::array kNonlinear = std::to_array<WrongBackward>({
    {"same-op-backward", applies_same_op, "", "",
     "Whatever the op, the cotangents are summed over the ranks, and then multiplied by the op's "
     "own derivative: of max, min and product compute that yourself, e.g. from an all_gather and a "
     "local reduction."},
    {"precision", goes_through<DType::kFloat32>, "", "", kPrecisionRemedy},
    {"precision", goes_through<DType::kFloat16>, "", "", kPrecisionRemedy},
    {"precision", goes_through<DType::kBFloat16>, "", "", kPrecisionRemedy},
    {"other-backward", is_not_linear, "", "",
     "Look for abs, max, a clip, a comparison, a rounding or a normalisation in that backward."},
});

}  // namespace

std::span<const WrongBackward> special_names() { return kSpecial; }
std::span<const WrongBackward> general_names() { return kGeneral; }
std::span<const WrongBackward> nonlinear_names() { return kNonlinear; }

}  // namespace distgrad
