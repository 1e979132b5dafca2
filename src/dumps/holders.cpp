#include "dumps/holders.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "dumps/patterns.h"

namespace distgrad::dumps {

std::optional<Stream::Reduction> reduction_named(const std::string& op) {
  using Reduction = Stream::Reduction;
  static const std::map<std::string, Reduction> known = {
      {"sum", Reduction::kSum}, {"avg", Reduction::kSum}, {"mean", Reduction::kSum},
      {"max", Reduction::kMax}, {"min", Reduction::kMin}, {"product", Reduction::kProduct}};
  const auto found = known.find(op);
  return found == known.end() ? std::nullopt : std::optional(found->second);
}

std::optional<Share> share_of(const PieceOnRank& h, std::string& unclear) {
  Share share{coordinate_of(h.mesh(), h.rank)};
  for (std::size_t axis = 0; axis < share.key.size(); ++axis) {
    const DumpPlacement& placement = h.layout()->placements[axis];
    if (placement.kind != DumpPlacement::Kind::kPartial) continue;
    const auto reduction = reduction_named(placement.op);
    if (!reduction || (share.shares > 1 && *reduction != share.reduction)) {
      unclear = fmt::format("it is Partial({})", placement.op);
      return std::nullopt;
    }
    share.key[axis] = -1;
    share.reduction = *reduction;
    share.shares *= h.mesh().axes[axis].size;
    if (placement.op == "avg") share.factor /= h.mesh().axes[axis].size;
  }
  share.key.insert(share.key.end(), h.mesh().ranks.begin(), h.mesh().ranks.end());
  return share;
}

bool holds_flat_pieces(const Dump& observed, const Dump& reference) {
  std::map<std::string, Shape> shapes;
  for (const RankDump& rank : reference.ranks)
    for (const auto& [name, gradient] : rank.gradients)
      if (gradient.tensor && !gradient.layout) shapes.emplace(name, gradient.tensor->shape);
  for (const RankDump& rank : observed.ranks)
    for (const auto& [name, gradient] : rank.gradients) {
      const auto whole = shapes.find(name);
      if (!gradient.tensor || gradient.layout || whole == shapes.end()) continue;
      const Shape& shape = gradient.tensor->shape;
      if (shape.size() == 1 && whole->second.size() > 1 && shape[0] < element_count(whole->second))
        return true;
    }
  return false;
}

Holders::Holders(const Dump& dump, std::vector<std::string> partly_held, bool are_flat)
    : dump_(dump),
      groups_(dump.groups()),
      partly_held_(std::move(partly_held)),
      are_flat_(are_flat) {
  for (const RankDump& rank : dump.ranks)
    for (const auto& [name, gradient] : rank.gradients) listed_[name].push_back(rank.rank);
  for (const auto& [name, ranks] : listed_) families_[pattern_of(name)].insert(ranks);
}

std::vector<PieceOnRank> Holders::of(const std::string& name) {
  const auto listed = listed_.find(name);
  const bool nobody = listed == listed_.end();
  std::vector<PieceOnRank> held;
  RanksByPart by_part;
  for (const RankDump& rank : dump_.ranks) {
    const auto found = rank.gradients.find(name);
    const bool absent = found == rank.gradients.end();
    if (!absent && found->second.elsewhere) continue;
    if (absent && !nobody) {
      if (rank.lists_all || is_partly_held(name)) continue;
      const bool others = holds_others(rank, listed->second);
      if (others || may_hold_none(rank.rank, name)) {
        (others ? by_part.others : by_part.nothing).push_back(rank.rank);
        continue;
      }
    }
    if (!absent) by_part.holders.push_back(rank.rank);
    held.push_back({rank.rank, &rank, absent ? nullptr : &found->second});
  }
  if (!by_part.others.empty() || !by_part.nothing.empty()) inferred_[by_part].insert(name);
  return held;
}

bool Holders::matches(const std::string& name, const std::string& pattern) const {
  if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
  return std::any_of(dump_.ranks.begin(), dump_.ranks.end(), [&](const RankDump& rank) {
    const auto shown = rank.shown.find(name);
    return shown != rank.shown.end() && fnmatch(pattern.c_str(), shown->second.c_str(), 0) == 0;
  });
}

bool Holders::is_partly_held(const std::string& name) const {
  return std::any_of(partly_held_.begin(), partly_held_.end(),
                     [&](const std::string& pattern) { return matches(name, pattern); });
}

// Returns true if the rank names something that no holder does; otherwise it may only have left out
// what had no gradient.
bool Holders::holds_others(const RankDump& rank, const std::vector<int>& holders) {
  const auto [known, is_new] = holds_others_.try_emplace({rank.rank, holders}, false);
  if (!is_new) return known->second;
  for (const auto& [name, gradient] : rank.gradients) {
    const std::vector<int>& others = listed_.at(name);
    const auto names_it = [&](int h) {
      return std::find(others.begin(), others.end(), h) != others.end();
    };
    if (std::none_of(holders.begin(), holders.end(), names_it)) return known->second = true;
  }
  return false;
}

// Returns true if the rank names no member of the parameter's family, and each member is on ranks
// of its own: the rank's own member may be one without a gradient. But members on fewer ranks than
// others may be missing on this one.
bool Holders::may_hold_none(int rank, const std::string& name) const {
  const auto& family = families_.at(pattern_of(name));
  std::set<int> holders = {rank};
  std::size_t most = 0;
  for (const std::vector<int>& ranks : family) {
    for (const int holder : ranks)
      if (!holders.insert(holder).second) return false;
    most = std::max(most, ranks.size());
  }
  return family.size() > 1 && listed_.at(name).size() == most;
}

}  // namespace distgrad::dumps
