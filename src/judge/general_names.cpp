// These names describe a part of what is right, or what stands in its place.
#include "judge/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "judge/phrases.h"

namespace distgrad {
namespace {

using enum CollectiveKind;

std::string gives_ties_otherwise(const ComparedMaps& maps) {
  return is_wrong_only_at_ties(maps)
             ? "gave ranks that tie for the extremum another share than an even one."
             : "";
}

std::string divides_at_zero(const ComparedMaps& maps) {
  if (!is_wrong_only_at_zeros(maps)) return "";
  return gives_zeros(maps)
             ? "gave the operand zeros for every cotangent, as where the product is divided by an "
               "operand of 0, or where the call is cut off from the graph."
             : "divided the product by the operand, which gives NaN or 0 where the operand is 0.";
}

std::string leaves_rest_off_root(const ComparedMaps& maps) {
  if (maps.m.call().kind != kBroadcast) return "";
  bool some = false;
  const bool holds =
      for_all(maps, [&](const PieceOf& to, const PieceOf&, const Block& seen, const Block& right) {
        if (place_in_group(maps, to.rank) == static_cast<std::size_t>(maps.m.call().root))
          return right.is_zero ? seen.is_zero : seen.of_right == 1.0;
        some = some || !seen.is_zero;
        return true;
      });
  return holds && some ? "left off root what a reduction to root leaves in its buffer, where the "
                         "gradient is 0."
                       : "";
}

// Returns the world ranks whose cotangents count for some target piece that lacks them.
std::set<std::size_t> lacking(const ComparedMaps& maps) {
  std::set<std::size_t> ranks;
  for_all(maps, [&](const PieceOf&, const PieceOf& from, const Block& seen, const Block& right) {
    if (seen.is_zero && !right.is_zero) ranks.insert(from.rank);
    return true;
  });
  return ranks;
}

// Returns true if exactly the contributions that `lacks` names are absent.
template <class Lacks>
bool lacks_exactly(const ComparedMaps& maps, const Lacks& lacks) {
  return for_all(
      maps, [&](const PieceOf& to, const PieceOf& from, const Block& seen, const Block& right) {
        return right.is_zero || seen.is_zero == lacks(to, from);
      });
}

bool counts_own_alone(const ComparedMaps& maps) {
  return lacks_exactly(maps,
                       [](const PieceOf& to, const PieceOf& from) { return to.rank != from.rank; });
}

// Returns the ranks whose cotangents are absent wherever they count, or nothing if others are, too.
std::set<std::size_t> lacking_everywhere(const ComparedMaps& maps) {
  std::set<std::size_t> ranks = lacking(maps);
  const bool holds = lacks_exactly(
      maps, [&](const PieceOf&, const PieceOf& from) { return ranks.contains(from.rank); });
  return holds ? ranks : std::set<std::size_t>();
}

// Sends around a ring to the next rank bring the cotangents of the ranks before, nearest first. A
// ring that is cut short lacks those of the ranks just after it, and the other way round.
std::string stops_ring_early(const ComparedMaps& maps) {
  if (!is_part_of_right(maps) || counts_own_alone(maps) || !lacking_everywhere(maps).empty())
    return "";
  const std::size_t size = group_size(maps, 0);
  for (std::size_t hops = 1; hops + 1 < size; ++hops)
    for (const bool forwards : {true, false}) {
      const auto is_not_reached = [&](const PieceOf& to, const PieceOf& from) {
        const std::size_t n = group_size(maps, to.rank);
        const std::size_t after =
            (place_in_group(maps, from.rank) + n - place_in_group(maps, to.rank)) % n;
        return after != 0 && (forwards ? after <= hops : after + hops >= n);
      };
      if (!lacks_exactly(maps, is_not_reached)) continue;
      return fmt::format(
          "lacks on each rank the cotangent{} of the {} {} it in the group, as where a ring that "
          "sends to the {} rank stops {} early.",
          hops == 1 ? "" : "s", hops == 1 ? "rank" : fmt::format("{} ranks", hops),
          forwards ? "after" : "before", forwards ? "next" : "previous",
          hops == 1 ? "one hop" : fmt::format("{} hops", hops));
    }
  return "";
}

std::string lacks_some(const ComparedMaps& maps) {
  if (!is_part_of_right(maps)) return "";
  if (counts_own_alone(maps))
    return maps.m.call().kind == kReduce
               ? "gave root its cotangent, and the other ranks nothing."
               : "counted the rank's own cotangent alone and dropped the other ranks'.";
  if (lacks_exactly(maps,
                    [](const PieceOf& to, const PieceOf& from) { return to.rank == from.rank; }))
    return "counted the other ranks' cotangents and left out the rank's own.";
  if (const std::set<std::size_t> ranks = lacking_everywhere(maps); !ranks.empty()) {
    std::vector<std::string> words;
    for (const std::size_t r : ranks) words.push_back(std::to_string(r));
    return fmt::format("lacks the cotangent{} of {} {}.", ranks.size() == 1 ? "" : "s",
                       ranks.size() == 1 ? "rank" : "ranks", enumeration(words));
  }
  std::set<std::size_t> on, all;
  for_all(maps, [&](const PieceOf& to, const PieceOf&, const Block& seen, const Block& right) {
    if (!right.is_zero) all.insert(to.rank);
    if (seen.is_zero && !right.is_zero) on.insert(to.rank);
    return true;
  });
  return fmt::format("lacks some of the ranks' cotangents on {}.",
                     on == all ? "every rank" : "some ranks");
}

std::vector<int> ranks_lacking(const ComparedMaps& maps) {
  const std::set<std::size_t> ranks = lacking_everywhere(maps);
  return {ranks.begin(), ranks.end()};
}

// Recognises a backward that is right in lists whose root has the same number in the world, and
// gives nothing in the others.
std::string forgets_root_elsewhere(const ComparedMaps& maps) {
  if (!traits(maps.m.call().kind).takes_root) return "";
  const int root = maps.m.call().root;
  const auto is_same = [&](std::size_t rank) {
    const std::vector<int>* ranks = list_with(maps.m.partition, rank);
    return ranks && (*ranks)[static_cast<std::size_t>(root)] == root;
  };
  bool has_same = false, has_others = false;
  const bool holds =
      for_all(maps, [&](const PieceOf& to, const PieceOf&, const Block& seen, const Block& right) {
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

// Recognises a backward that counts the cotangents of the rank's list in another group, or of all
// ranks.
std::string counts_in_other_group(const ComparedMaps& maps) {
  std::vector<std::pair<std::string, std::string>> groups;
  for (const Group& group : maps.m.program->groups)
    groups.emplace_back(group.name, "of the ranks of the group " + group.name);
  groups.emplace_back("", "of all ranks");
  for (const auto& [name, whose] : groups) {
    const auto partition = maps.m.program->partition_of(name);
    const std::size_t n = maps.m.world_size();
    std::vector<std::vector<char>> counts(n, std::vector<char>(n, 0)), due = counts;
    bool crosses = false;
    bool holds = for_all(
        maps, [&](const PieceOf& to, const PieceOf& from, const Block& seen, const Block& right) {
          counts[to.rank][from.rank] |= static_cast<char>(!seen.is_zero);
          due[to.rank][from.rank] |= static_cast<char>(!right.is_zero);
          return seen.is_zero || seen.of_copy == 1.0 || seen.of_right == 1.0;
        });
    holds = holds && counts != due;
    for (std::size_t r = 0; r < n; ++r)
      for (std::size_t k = 0; k < n; ++k) {
        holds = holds && due[r][k] == is_in_group(maps, r, k) &&
                counts[r][k] == shares_list(partition, r, k);
        crosses = crosses || (r != k && counts[r][k]);
      }
    if (holds && crosses)
      return fmt::format("counted the cotangents {}, instead of those of the call's own group.",
                         whose);
  }
  return "";
}

// Recognises a backward that copies whole pieces, as it should, but some wrong ones.
std::string takes_other_pieces(const ComparedMaps& maps) {
  std::optional<double> number;  // by which pieces are multiplied
  const bool is_moving =
      for_all(maps, [&](const PieceOf&, const PieceOf&, const Block&, const Block& right) {
        if (right.is_zero) return true;
        if (!number) number = right.of_copy;
        return right.of_copy && *number == *right.of_copy;
      });
  bool others = false;
  const bool holds =
      for_all(maps, [&](const PieceOf&, const PieceOf&, const Block& seen, const Block& right) {
        others = others || (right.is_zero && !seen.is_zero);
        return seen.is_zero || seen.of_right == 1.0 ||
               (is_moving && seen.of_copy && seen.of_copy == number);
      });
  if (!holds || !others) return "";
  return maps.m.call().kind == kSlice
             ? "put cotangents into other places than the rank's own slice of its operand."
             : "gave ranks other slices, or the cotangents of other ranks, than they are due.";
}

constexpr std::array kGeneral = std::to_array<WrongBackward>({
    {"tie", gives_ties_otherwise, "", "", help_with("tie")},
    {"zero-input", divides_at_zero, "", "", help_with("zero-input")},
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
     "The backward of a collective is a collective itself: let the other ranks' cotangents travel "
     "back, too. Look for a detach, a no_grad or a branch on a rank.",
     {},
     ranks_lacking},
    {"stale-or-aliased", leaves_rest_off_root, "", "",
     "Return zeros on the ranks that are not root: what they passed in was not used."},
    {"wrong-slice", takes_other_pieces, "", "",
     "Cut the gradient at the rank's own place in the group, and send each part back to the rank "
     "that the value came from."},
});

}  // namespace

std::span<const WrongBackward> general_names() { return kGeneral; }

}  // namespace distgrad
