#include "dumps/parameter.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "dumps/axes.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

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

// --- Each way of holding a parameter ---

void note_dtype(Parameter& p, const std::vector<PieceOnRank>& held) {
  for (const PieceOnRank& h : held)
    if (h.tensor()) p.dtype = coarser(h.tensor()->dtype, p.dtype);
}

void add_wrong_shape(Parameter& p, const PieceOnRank& h) {
  for (auto& [ranks, shape] : p.wrong_shapes)
    if (shape == h.tensor()->shape) {
      ranks.push_back(h.rank);
      return;
    }
  p.wrong_shapes.push_back({h.ranks(), h.tensor()->shape});
}

Holding holding(const PieceOnRank& h, DumpTensor reference, const Box& box) {
  Holding made;
  made.ranks = h.ranks();
  made.box = box;
  made.expected.terms.emplace_back(std::move(reference), box);
  if (h.tensor()) made.observed = whole_stream(*h.tensor());
  return made;
}

// Keeps only a padded piece's part of the tensor.
void leave_out_padding(Holding& padded, const DumpTensor& tensor) {
  if (tensor.size() <= padded.size()) return;
  DumpTensor flattened = tensor;
  flattened.shape = {tensor.size()};
  padded.observed.emplace();
  padded.observed->terms.emplace_back(flattened, Box{flattened.shape, {0}, {padded.size()}});
}

// Returns true if what follows the parts of padded pieces is zero, as it is if nothing was cut off.
bool is_padding_zero(const std::vector<PieceOnRank>& held, const std::vector<Box>& boxes) {
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (!held[i].tensor()) continue;
    const std::int64_t begin = boxes[i].size(), end = held[i].tensor()->size();
    std::vector<double> padding(static_cast<std::size_t>(std::max<std::int64_t>(0, end - begin)));
    if (padding.empty()) continue;
    read_elements(*held[i].tensor(), begin, end - begin, padding.data());
    if (std::ranges::any_of(padding, [](double value) { return value != 0; })) return false;
  }
  return true;
}

void hold_rank_by_rank(Parameter& p, const std::vector<PieceOnRank>& held,
                       const Reference& reference) {
  for (const PieceOnRank& h : held) {
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

void hold_by_placements(Parameter& p, const std::vector<PieceOnRank>& held,
                        const Reference& reference) {
  std::map<std::vector<int>, std::size_t> known;
  for (const PieceOnRank& h : held) {
    if (h.layout() == nullptr) {
      p.unclear = fmt::format("rank {} does not say what piece it holds", h.rank);
      return;
    }
    if (h.layout()->full_shape != p.shape) {
      p.wrong_shapes.push_back({h.ranks(), h.layout()->full_shape});
      return;
    }
    const auto share = share_of(h, p.unclear);
    if (!share) return;
    const auto [place, is_new] = known.emplace(share->key, p.holdings.size());
    if (is_new) {
      const Box box = *placed_box(*h.layout(), h.mesh(), h.rank);
      p.holdings.push_back(holding(h, reference.full, box));
    } else {
      Holding& sum = p.holdings[place->second];
      sum.ranks.push_back(h.rank);
      if (h.tensor() && sum.observed) sum.observed->terms.emplace_back(*h.tensor());
      if (h.tensor() && !sum.observed) sum.observed = whole_stream(*h.tensor());
    }
    Holding& made = p.holdings[place->second];
    if (share->shares > 1 && !h.tensor()) made.lacking.push_back(h.rank);
    if (!made.observed) continue;
    made.observed->factor = share->factor;
    made.observed->reduction = share->reduction;
  }
  for (std::size_t axis = 0; axis < held.front().mesh().axes.size(); ++axis)
    p.placements.push_back({held.front().mesh().axes[axis].name,
                            placement_text(held.front().layout()->placements[axis])});
}

// Reduces the ranks' tensors, which the user says are shares of one gradient.
Parameter reduced(Parameter p, const std::vector<PieceOnRank>& held, const Reference& reference,
                  const std::string& reduction) {
  Holding all = holding(held.front(), reference.full, whole_box(p.shape));
  all.ranks.clear();
  all.observed.reset();
  for (const PieceOnRank& h : held) {
    if (h.rank != kWhole) all.ranks.push_back(h.rank);
    if (!h.tensor()) {
      all.lacking.push_back(h.rank);
    } else if (h.tensor()->shape != p.shape) {
      add_wrong_shape(p, h);
    } else {
      if (!all.observed) all.observed.emplace();
      all.observed->terms.emplace_back(*h.tensor());
    }
  }
  if (!p.wrong_shapes.empty()) return p;
  if (all.observed) {
    all.observed->reduction = *reduction_named(reduction);
    if (reduction == "mean") all.observed->factor = 1.0 / static_cast<double>(held.size());
  }
  p.placements.push_back({"the ranks", fmt::format("Partial({})", reduction)});
  p.holdings.push_back(std::move(all));
  return p;
}

// Counts elements of the reference that are nonzero and in no holding's box.
std::int64_t uncovered_elements(const Parameter& p, const DumpTensor& full) {
  std::set<std::pair<Shape, Shape>> boxes;
  std::int64_t covered = 0;
  for (const Holding& h : p.holdings)
    if (boxes.emplace(h.box.offset, h.box.extent).second) covered += h.size();
  if (covered >= full.size()) return 0;  // pieces of one tensor do not overlap
  std::vector<bool> seen(static_cast<std::size_t>(full.size()));
  for (const Holding& h : p.holdings) {
    const BoxRuns runs(h.box);
    for (std::int64_t at = 0; at < h.size();) {
      const BoxRuns::Run run = runs.at(at);
      std::fill_n(seen.begin() + run.start, run.length, true);
      at += run.length;
    }
  }
  std::vector<double> values(seen.size());
  read_elements(full, 0, full.size(), values.data());
  std::int64_t uncovered = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) uncovered += !seen[i] && values[i] != 0 ? 1 : 0;
  return uncovered;
}

std::vector<Parameter> held_as_found(Parameter p, const Holders& observed,
                                     const std::vector<PieceOnRank>& held,
                                     const Reference& reference) {
  std::vector<std::optional<Shape>> shapes;
  std::vector<int> ranks;
  for (const PieceOnRank& h : held) {
    shapes.push_back(h.tensor() ? std::optional(h.tensor()->shape) : std::nullopt);
    ranks.push_back(h.rank);
  }
  std::vector<Parameter> found;
  for (const Arrangement& a : possible_arrangements(shapes, p.shape, observed.are_flat())) {
    if (!is_padding_zero(held, a.boxes)) continue;
    Parameter& made = found.emplace_back(p);
    made.arrangement = a.text;
    made.order = a.order;
    if (!a.grid.empty()) made.grid = fmt::format("{} on {}", a.grid, fmt::join(ranks, ", "));
    for (std::size_t i = 0; i < held.size(); ++i) {
      const Box& box = a.boxes[i];
      DumpTensor truth = reference.full;
      truth.shape = box.full;  // perhaps flattened
      made.holdings.push_back(holding(held[i], truth, box));
      if (held[i].tensor()) leave_out_padding(made.holdings.back(), *held[i].tensor());
    }
    find_axes(observed, held, made);
  }
  if (!found.empty()) return found;
  for (const PieceOnRank& h : held)
    if (h.tensor() && h.tensor()->shape != p.shape) add_wrong_shape(p, h);
  return {p};
}

}  // namespace

Stream whole_stream(const DumpTensor& tensor) {
  Stream stream;
  stream.terms.emplace_back(tensor);
  return stream;
}

std::vector<Parameter> parameters_of(Holders& observed, const std::string& name,
                                     const Reference& reference, const std::string& reduction) {
  const std::vector<PieceOnRank> held = observed.of(name);
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
      for (const PieceOnRank& h : held)
        if (h.tensor())
          p.holdings.push_back(Holding{h.ranks(),
                                       {},
                                       whole_stream(*h.tensor()),
                                       whole_stream(*h.tensor()),
                                       whole_box(h.tensor()->shape)});
      return {p};
    case Reference::Kind::kFull:
      break;
  }
  p.shape = reference.full.shape;
  const bool placed = std::any_of(held.begin(), held.end(),
                                  [](const PieceOnRank& h) { return h.layout() != nullptr; });
  if (!placed && !reduction.empty() && !held.empty())
    return {reduced(std::move(p), held, reference, reduction)};
  if (!placed) return held_as_found(std::move(p), observed, held, reference);
  hold_by_placements(p, held, reference);
  if (!p.unclear.empty() || !p.wrong_shapes.empty()) {
    p.holdings.clear();
    return {p};
  }
  if (observed.dump().absent_ranks().empty()) p.uncovered = uncovered_elements(p, reference.full);
  find_axes(observed, held, p);
  return {p};
}

}  // namespace distgrad::dumps
