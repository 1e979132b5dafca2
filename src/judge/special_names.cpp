// These names say more than "another group's backward".
#include "judge/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "judge/closeness.h"
#include "judge/precision_names.h"
#include "judge/scaling.h"

namespace distgrad {
namespace {

using enum CollectiveKind;

std::string gives_nothing(const ComparedMaps& maps) {
  // A division by the operand gives nothing, too, if only zeros have a derivative.
  if (!gives_zeros(maps) || (!maps.m.measured.is_none && is_wrong_only_at_zeros(maps))) return "";
  return maps.m.measured.is_none ? "gave no gradient (None) to the operand."
                                 : "gave the operand zeros for every cotangent.";
}

// Returns false if every rank is alone in its group, so that nobody's cotangent can be dropped.
bool has_peers(const ComparedMaps& maps) {
  return std::any_of(maps.m.partition.begin(), maps.m.partition.end(),
                     [](const auto& ranks) { return ranks.size() > 1; });
}

std::string passes_own_on(const ComparedMaps& maps) {
  if (!traits(maps.m.call().kind).keeps_shape() || !has_peers(maps)) return "";
  const bool holds = copies_where(
      maps, [](const PieceOf& to, const PieceOf& from) { return to.rank == from.rank; });
  return holds ? "passed the local cotangent on and dropped the other ranks'." : "";
}

// The remedy, and whether the backward is right for some loss, depend on the kind of call.
template <CollectiveKind kind>
std::string passes_own_on_of(const ComparedMaps& maps) {
  return maps.m.call().kind == kind ? passes_own_on(maps) : "";
}

std::string passes_own_on_of_reduce(const ComparedMaps& maps) {
  return passes_own_on_of<kReduce>(maps).empty()
             ? ""
             : "passed each rank's own cotangent on, where root's alone counts.";
}

std::string passes_own_on_of_sum(const ComparedMaps& maps) {
  return is_of(maps, ReduceOp::kSum) ? passes_own_on_of<kAllReduce>(maps) : "";
}

// Says by how much a backward multiplied the rank's own contribution.
struct Multiple {
  std::optional<double> number;  // on all ranks; absent if it differs with the group's size
  bool is_group_size = false;

  bool is_one() const { return number == 1 && !is_group_size; }
  std::string text() const {
    return is_group_size ? "the group's size" : fmt::format("{:.6g}", *number);
  }
};

// Returns the multiple if a backward gives a rank a multiple of its own contribution and nothing of
// the others'. Returns nothing if it does not, or if the multiple is no such number.
std::optional<Multiple> multiple_of_own(const ComparedMaps& maps,
                                        std::optional<double> Block::*what) {
  std::optional<double> factor;
  bool is_size = true, is_one_number = true;
  const bool is_alone = for_all(
      maps, [&](const PieceOf& to, const PieceOf& from, const Block& seen, const Block& right) {
        if (right.is_zero || to.rank != from.rank) return seen.is_zero;
        const std::optional<double>& times = seen.*what;
        if (!times) return false;
        is_one_number = is_one_number && (!factor || *factor == *times);
        is_size = is_size && *times == static_cast<double>(group_size(maps, to.rank));
        factor = times;
        return true;
      });
  if (!is_alone || !factor || (!is_size && !is_one_number)) return std::nullopt;
  return Multiple{is_one_number ? factor : std::nullopt, is_size};
}

std::string multiplies_own_by_size(const ComparedMaps& maps) {
  if (maps.m.call().kind != kAllReduce || !is_of(maps, ReduceOp::kSum) || !has_peers(maps))
    return "";
  const auto times = multiple_of_own(maps, &Block::of_copy);
  return times && times->is_group_size
             ? "multiplied the local cotangent by the group's size and dropped the other ranks'."
             : "";
}

std::string keeps_own_slice_times(const ComparedMaps& maps, bool (*is_meant)(const Multiple&)) {
  if (maps.m.call().kind != kAllGather || !has_peers(maps)) return "";
  const auto times = multiple_of_own(maps, &Block::of_right);
  if (!times || !is_meant(*times)) return "";
  return fmt::format(
      "kept the slice that the rank's own loss saw{} and dropped what the other ranks' losses saw "
      "of it.",
      times->is_one() ? "" : fmt::format(", multiplied it by {},", times->text()));
}

std::string keeps_own_slice(const ComparedMaps& maps) {
  return keeps_own_slice_times(maps, [](const Multiple& times) { return times.is_one(); });
}

std::string keeps_own_slice_times_size(const ComparedMaps& maps) {
  return keeps_own_slice_times(maps, [](const Multiple& times) { return times.is_group_size; });
}

std::string keeps_own_slice_times_any(const ComparedMaps& maps) {
  return keeps_own_slice_times(maps, [](const Multiple&) { return true; });
}

std::string forgets_op(const ComparedMaps& maps) {
  const CollectiveCall& call = maps.m.call();
  if (!traits(call.kind).takes_op || call.op == ReduceOp::kSum) return "";
  const bool holds = copies_where(maps, [&](const PieceOf& to, const PieceOf& from) {
    if (!is_in_group(maps, to.rank, from.rank)) return false;
    if (call.kind == kReduce)
      return place_in_group(maps, from.rank) == static_cast<std::size_t>(call.root);
    if (call.kind == kReduceScatter) return to.piece == place_in_group(maps, from.rank);
    return true;
  });
  return holds ? "is that of a sum, whatever the op was." : "";
}

// If all ranks tie everywhere, a forgotten op and giving all to each tie look alike; the latter is
// likelier.
std::string gives_all_to_each_tie(const ComparedMaps& maps) {
  return is_wrong_only_at_ties(maps) && !forgets_op(maps).empty()
             ? "gave every rank that ties for the extremum the whole cotangent."
             : "";
}

bool sums_to_all(const ComparedMaps& maps) {
  const CollectiveCall& call = maps.m.call();
  return traits(call.kind).takes_op && (call.op == ReduceOp::kSum || call.op == ReduceOp::kAvg ||
                                        call.op == ReduceOp::kPremulSum);
}

double times_size(double group, double) { return group; }
double over_size(double group, double) { return 1 / group; }
double size_of_world(double group, double world) { return group / world; }

std::string sums_twice(const ComparedMaps& maps) {
  if (!sums_to_all(maps) || !is_by_group_size(maps, times_size)) return "";
  return "is the right one multiplied by the group's size, as if summed twice.";
}

std::string is_scaled(const ComparedMaps& maps) {
  if (is_wrong_only_at_ties(maps)) return "";  // what is right there is a share of it
  if (is_by_group_size(maps, times_size)) return "is the right one multiplied by the group's size.";
  const bool by_the_world = is_of(maps, ReduceOp::kAvg) && is_by_group_size(maps, size_of_world);
  if (is_by_group_size(maps, over_size))
    return by_the_world ? "is the right one divided by the group's size once more, or by the "
                          "world's size in place of the group's."
                        : "is the right one divided by the group's size.";
  if (by_the_world) return "divided by the world's size, and not by the group's.";
  const auto factor = common_factor(maps);
  if (!factor || *factor == 1) return "";
  return "is " + factor_of_exact(*maps.m.program, *factor).of("the right one") + ".";
}

std::string sums_over_all(const ComparedMaps& maps) {
  if (!traits(maps.m.call().kind).keeps_shape()) return "";
  const bool holds = copies_where(maps, [&](const PieceOf& to, const PieceOf& from) {
    return is_in_group(maps, to.rank, from.rank);
  });
  return holds ? "summed the cotangents over the ranks once more than the chain rule does." : "";
}

std::string sums_over_all_of_broadcast(const ComparedMaps& maps) {
  return maps.m.call().kind == kBroadcast && !sums_over_all(maps).empty()
             ? "gave every rank the sum of the cotangents, which the source alone is due."
             : "";
}

// Recognises a backward that gives every rank the sum of what is right for all ranks.
std::string reduces_twice(const ComparedMaps& maps) {
  if (!traits(maps.m.call().kind).communicates) return "";
  for (const auto& ranks : maps.m.partition)
    for (std::size_t k = 0; k < maps.m.probes.size(); ++k) {
      const auto first = static_cast<std::size_t>(ranks[0]);
      std::vector<double> sum(maps.m.right.values[k][first].size(), 0.0);
      double room = 0;
      for (const int r : ranks) {
        const std::vector<double>& one = maps.m.right.values[k][static_cast<std::size_t>(r)];
        if (one.size() != sum.size()) return "";
        for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += one[e];
        room += resolution(maps.m, k, static_cast<std::size_t>(r));
      }
      for (const int r : ranks)
        if (!difference(maps.m.measured.values[k][static_cast<std::size_t>(r)], sum,
                        [&](std::size_t) { return room; })
                 .equal)
          return "";
    }
  return "is the right one, summed over the ranks once more.";
}

constexpr std::string_view kTwiceRemedy =
    "Sum the cotangents once: look for a second reduction, a missing division, or zeros that ranks "
    "other than root should get.";
constexpr std::string_view kSliceRemedy =
    "Else add up the ranks' cotangents of each slice: a reduce_scatter of the whole cotangent, as "
    "torch.distributed.nn.functional.all_gather does, or all_reduce and then slice.";

constexpr std::array kSpecial = std::to_array<WrongBackward>({
    {"precision", answers_rounded<DType::kFloat32>, "", "", help_with("precision")},
    {"precision", answers_rounded<DType::kFloat16>, "", "", help_with("precision")},
    {"precision", answers_rounded<DType::kBFloat16>, "", "", help_with("precision")},
    {"no-gradient", gives_nothing, "", "",
     "Look for a detach, a root that is not the call's, or a plain torch.distributed call into a "
     "new tensor, which is cut off from the graph."},
    {"identity-backward", passes_own_on_of_sum, "the loss is one loss that every rank computes",
     "replicated",
     "Else sum the cotangents over the group in backward: torch.distributed.nn.functional and "
     "torch.distributed._functional_collectives do, the plain in-place collectives do not."},
    {"identity-backward", passes_own_on_of<kBroadcast>, "", "",
     "Sum the cotangents over the group onto the source, and give the other ranks zeros: "
     "torch.distributed.nn.functional does, the plain broadcast and that of "
     "torch.distributed._functional_collectives do not."},
    {"identity-backward", passes_own_on_of_reduce, "", "",
     "Broadcast root's cotangent to the group in backward, and multiply it by the op's own "
     "derivative: root alone has the result, so that the other ranks' cotangents are of nothing."},
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
    {"tie", gives_all_to_each_tie, "", "", help_with("tie"), "forgotten-op"},
    {"forgotten-op", forgets_op, "", "", help_with("forgotten-op")},
    {"double-reduction", sums_twice, "", "", kTwiceRemedy, "scaled"},
    {"scaled", is_scaled, "", "",
     "Sum or divide in one place only: the loss, the collective or the gradient's "
     "synchronisation."},
    {"double-reduction", sums_over_all_of_broadcast, "", "",
     "Return zeros on the ranks that are not the source: what they passed in was not used."},
    {"double-reduction", sums_over_all,
     "the operand is one replicated value of which each rank's loss sees a share", "",
     "Sum in one place only: here, or where the gradient is synchronised."},
    {"double-reduction", reduces_twice, "", "", kTwiceRemedy},
});

}  // namespace

std::span<const WrongBackward> special_names() { return kSpecial; }

}  // namespace distgrad
