#include "dumps/parameter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "report/words.h"

namespace distgrad::dumps {
namespace {

struct Held {
  int rank;
  const RankDump* dump;
  const DumpGradient* gradient;  // null: not in the file

  const DumpTensor* tensor() const {
    return gradient && gradient->tensor ? &*gradient->tensor : nullptr;
  }
  const DumpLayout* layout() const {
    return gradient && gradient->layout ? &*gradient->layout : nullptr;
  }
  const DumpMesh& mesh() const { return dump->meshes[layout()->mesh]; }
  std::vector<int> ranks() const {
    return rank == kWhole ? std::vector<int>{} : std::vector<int>{rank};
  }
};

std::vector<Held> held_by_ranks(const Dump& dump, const std::string& name) {
  std::vector<Held> held;
  for (const RankDump& rank : dump.ranks) {
    const auto found = rank.gradients.find(name);
    held.push_back({rank.rank, &rank, found == rank.gradients.end() ? nullptr : &found->second});
  }
  const auto is_elsewhere = [](const Held& h) {
    return h.gradient == nullptr && h.dump->lists_all;
  };
  if (!std::all_of(held.begin(), held.end(), is_elsewhere)) std::erase_if(held, is_elsewhere);
  return held;
}

std::string placement_text(const DumpPlacement& p) {
  switch (p.kind) {
    case DumpPlacement::Kind::kReplicate:
      return "Replicate";
    case DumpPlacement::Kind::kShard:
      return fmt::format("Shard({})", p.dim);
    case DumpPlacement::Kind::kPartial:
      return fmt::format("Partial({})", p.op);
  }
  return {};
}

std::vector<std::vector<std::size_t>> as_holdings(
    const std::vector<std::vector<int>>& groups_of_ranks, const std::vector<Holding>& holdings) {
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

// The ranks of the mesh in groups that differ in the axes of `subset` (bits) alone.
std::vector<std::vector<int>> lines_of(const DumpMesh& mesh, unsigned subset) {
  std::map<std::vector<int>, std::vector<int>> lines;
  for (const int rank : mesh.ranks) {
    std::vector<int> key = coordinate_of(mesh, rank);
    for (std::size_t axis = 0; axis < key.size(); ++axis)
      if ((subset >> axis & 1) != 0) key[axis] = -1;
    lines[key].push_back(rank);
  }
  std::vector<std::vector<int>> groups;
  for (auto& [key, ranks] : lines) groups.push_back(std::move(ranks));
  return groups;
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

// Several meshes where the ranks are on different submeshes; the axes of each have the same names.
void add_axes(const std::vector<const DumpMesh*>& meshes, const std::vector<Holding>& holdings,
              std::vector<AxisGroups>& axes) {
  for (const unsigned subset : subsets_by_size(meshes.front()->axes.size())) {
    AxisGroups entry;
    std::vector<std::string> names;
    for (std::size_t axis = 0; axis < meshes.front()->axes.size(); ++axis) {
      if ((subset >> axis & 1) == 0) continue;
      names.push_back(meshes.front()->axes[axis].name);
      entry.size *= meshes.front()->axes[axis].size;
    }
    if (entry.size == 1) continue;
    entry.name = fmt::format("{}", fmt::join(names, " and "));
    for (const DumpMesh* mesh : meshes)
      for (auto& group : as_holdings(lines_of(*mesh, subset), holdings))
        entry.groups.push_back(std::move(group));
    const bool same = std::any_of(axes.begin(), axes.end(),
                                  [&](const AxisGroups& a) { return a.groups == entry.groups; });
    if (!same) axes.push_back(std::move(entry));
  }
}

void add_all_ranks(Parameter& p) {
  if (p.holdings.size() < 2) return;
  AxisGroups all{"the ranks", 0, {{}}};
  for (std::size_t h = 0; h < p.holdings.size(); ++h) all.groups[0].push_back(h);
  all.size = static_cast<int>(p.holdings.size());
  for (const AxisGroups& axis : p.axes)
    if (axis.groups == all.groups) return;
  p.axes.push_back(std::move(all));
}

void find_axes(const Dump& dump, const std::vector<Held>& held, Parameter& p) {
  std::vector<const DumpMesh*> meshes;
  for (const Held& h : held) {
    if (h.layout() == nullptr) continue;
    const bool known = std::any_of(meshes.begin(), meshes.end(),
                                   [&](const DumpMesh* m) { return m->ranks == h.mesh().ranks; });
    if (!known && (meshes.empty() || meshes.front()->axes.size() == h.mesh().axes.size()))
      meshes.push_back(&h.mesh());
  }
  if (!meshes.empty()) add_axes(meshes, p.holdings, p.axes);
  if (const DumpMesh* world = dump.mesh()) add_axes({world}, p.holdings, p.axes);
  add_all_ranks(p);
}

// --- Each way of holding a parameter ---

void note_dtype(Parameter& p, const std::vector<Held>& held) {
  for (const Held& h : held)
    if (h.tensor() && unit_roundoff(h.tensor()->dtype) > unit_roundoff(p.dtype))
      p.dtype = h.tensor()->dtype;
}

void add_wrong_shape(Parameter& p, const Held& h) {
  for (auto& [ranks, shape] : p.wrong_shapes)
    if (shape == h.tensor()->shape) {
      ranks.push_back(h.rank);
      return;
    }
  p.wrong_shapes.push_back({h.ranks(), h.tensor()->shape});
}

Holding holding(const Held& h, DumpTensor reference, const Box& box) {
  Holding made;
  made.ranks = h.ranks();
  made.box = box;
  made.expected.terms.emplace_back(std::move(reference), box);
  if (h.tensor()) made.observed = whole_stream(*h.tensor());
  return made;
}

void hold_rank_by_rank(Parameter& p, const std::vector<Held>& held, const Reference& reference) {
  for (const Held& h : held) {
    const auto truth = reference.by_rank.find(h.rank);
    if (truth == reference.by_rank.end()) {
      p.unclear =
          "the reference's ranks hold different values, and it has none for " +
          (h.rank == kWhole ? std::string("a whole gradient") : fmt::format("rank {}", h.rank));
      p.holdings.clear();
      return;
    }
    if (h.tensor() && h.tensor()->shape != truth->second.shape) {
      add_wrong_shape(p, h);
      continue;
    }
    p.holdings.push_back(holding(h, truth->second, whole_box(truth->second.shape)));
  }
}

// Ranks whose shares (Partial) are one sum make one holding.
void hold_by_placements(Parameter& p, const std::vector<Held>& held, const Reference& reference) {
  std::map<std::vector<int>, std::size_t> known;
  for (const Held& h : held) {
    if (h.layout() == nullptr) {
      p.unclear = fmt::format("rank {} does not say what piece it holds", h.rank);
      return;
    }
    const DumpLayout& layout = *h.layout();
    if (layout.full_shape != p.shape) {
      p.wrong_shapes.push_back({h.ranks(), layout.full_shape});
      return;
    }
    std::vector<int> key = coordinate_of(h.mesh(), h.rank);
    double factor = 1;
    for (std::size_t axis = 0; axis < key.size(); ++axis) {
      const DumpPlacement& placement = layout.placements[axis];
      if (placement.kind != DumpPlacement::Kind::kPartial) continue;
      if (placement.op != "sum" && placement.op != "avg") {
        p.unclear = fmt::format("it is Partial({})", placement.op);
        return;
      }
      key[axis] = -1;
      if (placement.op == "avg") factor /= h.mesh().axes[axis].size;
    }
    key.insert(key.end(), h.mesh().ranks.begin(), h.mesh().ranks.end());
    const auto [place, is_new] = known.emplace(key, p.holdings.size());
    if (is_new) {
      p.holdings.push_back(holding(h, reference.full, *placed_box(layout, h.mesh(), h.rank)));
    } else {
      Holding& sum = p.holdings[place->second];
      sum.ranks.push_back(h.rank);
      if (h.tensor() && sum.observed) sum.observed->terms.emplace_back(*h.tensor());
      if (h.tensor() && !sum.observed) sum.observed = whole_stream(*h.tensor());
    }
    Holding& made = p.holdings[place->second];
    if (made.observed) made.observed->factor = factor;
  }
  for (std::size_t axis = 0; axis < held.front().mesh().axes.size(); ++axis)
    p.placements.push_back({held.front().mesh().axes[axis].name,
                            placement_text(held.front().layout()->placements[axis])});
}

std::vector<Parameter> held_as_found(Parameter p, const Dump& dump, const std::vector<Held>& held,
                                     const Reference& reference) {
  std::vector<std::optional<Shape>> shapes;
  for (const Held& h : held)
    shapes.push_back(h.tensor() ? std::optional(h.tensor()->shape) : std::nullopt);
  std::vector<Parameter> found;
  for (const Arrangement& a : possible_arrangements(shapes, p.shape)) {
    Parameter& made = found.emplace_back(p);
    made.arrangement = a.text;
    for (std::size_t i = 0; i < held.size(); ++i) {
      const Box& box = a.boxes[i];
      DumpTensor truth = reference.full;
      truth.shape = box.full;  // flattened, perhaps
      made.holdings.push_back(holding(held[i], truth, box));
    }
    find_axes(dump, held, made);
  }
  if (!found.empty()) return found;
  for (const Held& h : held)
    if (h.tensor() && h.tensor()->shape != p.shape) add_wrong_shape(p, h);
  return {p};
}

}  // namespace

Stream whole_stream(const DumpTensor& tensor) {
  Stream stream;
  stream.terms.emplace_back(tensor);
  return stream;
}

std::vector<Parameter> parameters_of(const Dump& observed, const std::string& name,
                                     const Reference& reference) {
  const std::vector<Held> held = held_by_ranks(observed, name);
  Parameter p;
  p.name = name;
  p.dtype = reference.dtype;
  note_dtype(p, held);
  switch (reference.kind) {
    case Reference::Kind::kUnclear:
      p.unclear = "in the reference, " + reference.why;
      return {p};
    case Reference::Kind::kByRank:
      p.by_rank = true;
      hold_rank_by_rank(p, held, reference);
      find_axes(observed, held, p);
      return {p};
    case Reference::Kind::kMissing:
      p.missing_reference = true;
      for (const Held& h : held)
        if (h.tensor())
          p.holdings.push_back(Holding{h.ranks(), whole_stream(*h.tensor()),
                                       whole_stream(*h.tensor()), whole_box(h.tensor()->shape)});
      return {p};
    case Reference::Kind::kFull:
      break;
  }
  p.shape = reference.full.shape;
  const bool placed =
      std::any_of(held.begin(), held.end(), [](const Held& h) { return h.layout() != nullptr; });
  if (!placed) return held_as_found(std::move(p), observed, held, reference);
  hold_by_placements(p, held, reference);
  if (!p.unclear.empty() || !p.wrong_shapes.empty())
    p.holdings.clear();
  else
    find_axes(observed, held, p);
  return {p};
}

Bound bound_for(const Parameter& p, const ToleranceOptions& options, double largest_of_whole) {
  const DType computed = options.dtype.value_or(p.dtype);
  const DType dtype = unit_roundoff(computed) > unit_roundoff(p.dtype) ? computed : p.dtype;
  Bound bound;
  bound.elementwise = options.elementwise;
  bound.rtol = options.rtol.value_or(default_rtol(dtype));
  bound.atol = options.atol;
  if (!options.elementwise && !options.rtol) bound.floor = unit_roundoff(dtype) * largest_of_whole;
  return bound;
}

}  // namespace distgrad::dumps
