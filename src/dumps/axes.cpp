#include "dumps/axes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace distgrad::dumps {
namespace {

using RankGroups = std::vector<std::vector<int>>;

std::vector<std::vector<std::size_t>> as_holdings(const RankGroups& groups_of_ranks,
                                                  const std::vector<Holding>& holdings) {
  std::vector<std::vector<std::size_t>> groups;
  for (const std::vector<int>& ranks : groups_of_ranks) {
    std::set<std::size_t> group;
    for (std::size_t h = 0; h < holdings.size(); ++h)
      for (const int rank : ranks)
        if (std::find(holdings[h].ranks.begin(), holdings[h].ranks.end(), rank) !=
            holdings[h].ranks.end())
          group.insert(h);
    if (!group.empty()) groups.emplace_back(group.begin(), group.end());
  }
  return groups;
}

void add(Parameter& p, AxisGroups entry) {
  std::sort(entry.groups.begin(), entry.groups.end());
  const bool known = std::any_of(p.axes.begin(), p.axes.end(),
                                 [&](const AxisGroups& a) { return a.groups == entry.groups; });
  if (!known && entry.size > 1) p.axes.push_back(std::move(entry));
}

std::vector<unsigned> subsets_by_size(std::size_t axes) {
  constexpr std::size_t kMostAxes = 5;
  std::vector<unsigned> subsets;
  for (unsigned s = 1; s < 1u << std::min(axes, kMostAxes); ++s) subsets.push_back(s);
  std::stable_sort(subsets.begin(), subsets.end(), [](unsigned a, unsigned b) {
    return __builtin_popcount(a) < __builtin_popcount(b);
  });
  return subsets;
}

// Takes several meshes if the ranks are on different submeshes, whose axes have the same names.
void add_axes(const std::vector<const DumpMesh*>& meshes, Parameter& p) {
  for (const unsigned subset : subsets_by_size(meshes.front()->axes.size())) {
    AxisGroups entry;
    std::vector<std::string> names;
    for (std::size_t axis = 0; axis < meshes.front()->axes.size(); ++axis) {
      if ((subset >> axis & 1) == 0 || meshes.front()->axes[axis].size == 1) continue;
      names.push_back(meshes.front()->axes[axis].name);
      entry.size *= meshes.front()->axes[axis].size;
    }
    entry.name = fmt::format("{}", fmt::join(names, " and "));
    for (const DumpMesh* mesh : meshes)
      for (auto& group : as_holdings(lines_of(*mesh, subset), p.holdings))
        entry.groups.push_back(std::move(group));
    add(p, std::move(entry));
  }
}

void add_process_groups(const std::vector<DumpGroups>& groups, Parameter& p) {
  for (const DumpGroups& alike : groups) {
    const bool named = !alike.name.empty();
    add(p, {named ? AxisGroups::Kind::kAxis : AxisGroups::Kind::kProcessGroups,
            named ? alike.name : "the process groups", static_cast<int>(alike.ranks.front().size()),
            as_holdings(alike.ranks, p.holdings)});
  }
}

}  // namespace

RankGroups lines_of(const DumpMesh& mesh, unsigned subset) {
  std::map<std::vector<int>, std::vector<int>> lines;
  for (const int rank : mesh.ranks) {
    std::vector<int> key = coordinate_of(mesh, rank);
    for (std::size_t axis = 0; axis < key.size(); ++axis)
      if ((subset >> axis & 1) != 0) key[axis] = -1;
    lines[key].push_back(rank);
  }
  RankGroups groups;
  for (auto& [key, ranks] : lines) groups.push_back(std::move(ranks));
  return groups;
}

void find_axes(const Holders& holders, const std::vector<PieceOnRank>& held, Parameter& p) {
  std::vector<const DumpMesh*> meshes;
  for (const PieceOnRank& h : held) {
    if (h.layout() == nullptr) continue;
    const bool known = std::any_of(meshes.begin(), meshes.end(),
                                   [&](const DumpMesh* m) { return m->ranks == h.mesh().ranks; });
    if (!known && (meshes.empty() || meshes.front()->axes.size() == h.mesh().axes.size()))
      meshes.push_back(&h.mesh());
  }
  if (!meshes.empty()) add_axes(meshes, p);
  if (const DumpMesh* world = holders.dump().mesh()) add_axes({world}, p);
  add_process_groups(holders.groups(), p);
  AxisGroups all{AxisGroups::Kind::kAll, "the ranks", static_cast<int>(p.holdings.size()), {{}}};
  for (std::size_t h = 0; h < p.holdings.size(); ++h) all.groups[0].push_back(h);
  add(p, std::move(all));
}

}  // namespace distgrad::dumps
