#include "dumps/boxes.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace distgrad::dumps {
namespace {

// Returns the axes that cut `dim`, in their order.
std::optional<std::vector<std::size_t>> cutting_order(const DumpLayout& layout,
                                                      const DumpMesh& mesh, int dim) {
  std::vector<std::size_t> order;
  for (std::size_t axis = layout.placements.size(); axis-- > 0;) {
    const DumpPlacement& p = layout.placements[axis];
    if (p.kind != DumpPlacement::Kind::kShard || p.dim != dim) continue;
    std::size_t before = 0;
    std::int64_t pieces = 1;
    while (pieces < p.split_factor && before < order.size())
      pieces *= mesh.axes[order[before++]].size;
    if (pieces != p.split_factor) return std::nullopt;
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(before), axis);
  }
  return order;
}

void cut(std::int64_t& offset, std::int64_t& extent, std::int64_t pieces, std::int64_t index) {
  const std::int64_t chunk = (extent + pieces - 1) / pieces;
  const std::int64_t begin = std::min(extent, chunk * index);
  extent = std::min(chunk, extent - begin);
  offset += begin;
}

// Joins pieces that consecutive ranks hold; after the last piece it starts again.
std::optional<std::vector<std::int64_t>> joined_cyclically(std::span<const std::int64_t> extents,
                                                           std::int64_t full) {
  std::vector<std::int64_t> offsets;
  std::int64_t at = 0;
  for (const std::int64_t extent : extents) {
    if (at == full && extent > 0) at = 0;  // an empty piece may be the last one
    offsets.push_back(at);
    at += extent;
    if (at > full) return std::nullopt;
  }
  return at == full ? std::optional(offsets) : std::nullopt;
}

// Joins pieces that `copies` consecutive ranks hold each.
std::optional<std::vector<std::int64_t>> joined_in_blocks(std::span<const std::int64_t> extents,
                                                          std::int64_t full, std::size_t copies) {
  std::vector<std::int64_t> offsets;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] != extents[i - i % copies]) return std::nullopt;
    offsets.push_back(at);
    if (i % copies == copies - 1) at += extents[i];
  }
  return at == full ? std::optional(offsets) : std::nullopt;
}

struct Join {
  std::vector<std::int64_t> offsets;
  std::string text;
};

std::vector<Join> joins(std::span<const std::int64_t> extents, std::int64_t full) {
  std::vector<Join> found;
  if (auto offsets = joined_cyclically(extents, full))
    found.push_back({std::move(*offsets), "in the order of the ranks"});
  const std::int64_t sum = std::accumulate(extents.begin(), extents.end(), std::int64_t{0});
  const auto copies = static_cast<std::size_t>(full == 0 ? 1 : sum / full);
  if (copies > 1 && extents.size() % copies == 0)
    if (auto offsets = joined_in_blocks(extents, full, copies))
      found.push_back(
          {std::move(*offsets), fmt::format("each held by {} consecutive ranks", copies)});
  return found;
}

// Returns the only dimension in which pieces differ from `full`, or nothing if there are several,
// or none.
std::optional<std::size_t> cut_dimension(std::span<const std::optional<Shape>> shapes,
                                         const Shape& full) {
  std::optional<std::size_t> dim;
  for (const auto& shape : shapes) {
    if (!shape || shape->size() != full.size()) return std::nullopt;
    for (std::size_t d = 0; d < full.size(); ++d) {
      if ((*shape)[d] == full[d]) continue;
      if (dim.value_or(d) != d) return std::nullopt;
      dim = d;
    }
  }
  return dim;
}

struct GridAxis {
  std::optional<std::size_t> dim;  // absent: copies
  std::int64_t pieces = 1;
};

Arrangement grid(const std::vector<GridAxis>& axes, std::size_t ranks, const Shape& full) {
  Arrangement a;
  std::vector<std::string> cut, counted;
  for (const GridAxis& axis : axes) {
    cut.push_back(axis.dim ? fmt::format("dimension {}", *axis.dim) : "copies");
    counted.push_back(fmt::format("{} in {}", cut.back(), axis.pieces));
  }
  std::ranges::sort(counted);
  a.grid = fmt::format("{}", fmt::join(counted, ", "));
  a.order = fmt::format("{}", fmt::join(cut, ", "));
  a.text = "pieces of a grid over the ranks, from the outermost: " + a.order;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    Box box = whole_box(full);
    auto index = static_cast<std::int64_t>(rank);
    for (std::size_t axis = axes.size(); axis-- > 0; index /= axes[axis].pieces) {
      if (!axes[axis].dim) continue;
      const std::size_t dim = *axes[axis].dim;
      box.extent[dim] /= axes[axis].pieces;
      box.offset[dim] = index % axes[axis].pieces * box.extent[dim];
    }
    a.boxes.push_back(std::move(box));
  }
  return a;
}

// Tries equal pieces that are cut in two dimensions or more, in every order of the axes that the
// ranks may lie on: experts that are cut over ep and over tp, once or several times over.
std::vector<Arrangement> grid_arrangements(std::span<const std::optional<Shape>> shapes,
                                           const Shape& full) {
  constexpr std::size_t kMostAxes = 4;
  std::vector<GridAxis> axes;
  std::int64_t pieces = 1;
  for (const auto& shape : shapes)
    if (!shape || *shape != *shapes[0] || shape->size() != full.size()) return {};
  for (std::size_t dim = 0; dim < full.size(); ++dim) {
    const std::int64_t extent = (*shapes[0])[dim];
    if (extent == full[dim]) continue;
    if (extent == 0 || full[dim] % extent != 0) return {};
    axes.push_back({dim, full[dim] / extent});
    pieces *= full[dim] / extent;
  }
  const auto ranks = static_cast<std::int64_t>(shapes.size());
  if (axes.size() < 2 || axes.size() >= kMostAxes || ranks % pieces != 0) return {};
  if (ranks > pieces) axes.insert(axes.begin(), {std::nullopt, ranks / pieces});
  std::vector<Arrangement> found;
  const auto order = [](const GridAxis& a, const GridAxis& b) { return a.dim < b.dim; };
  do {
    found.push_back(grid(axes, shapes.size(), full));
  } while (std::next_permutation(axes.begin(), axes.end(), order));
  return found;
}

// Tries equal pieces of the flattened tensor with zeros after its end, as hand-written ZeRO cuts.
std::optional<Arrangement> padded_arrangement(std::span<const std::int64_t> extents,
                                              std::int64_t full) {
  const auto ranks = static_cast<std::int64_t>(extents.size());
  Arrangement a;
  a.text = "pieces of the flattened tensor, padded with zeros at its end";
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    Box box{{full}, {0}, {full}};
    cut(box.offset[0], box.extent[0], ranks, rank);
    a.boxes.push_back(std::move(box));
  }
  // The first piece has no padding, and all are as long as it.
  const std::int64_t piece = a.boxes.front().extent[0];
  const bool alike = std::ranges::all_of(extents, [&](auto extent) { return extent == piece; });
  return alike ? std::optional(std::move(a)) : std::nullopt;
}

std::vector<Arrangement> flat_arrangements(std::span<const std::optional<Shape>> shapes,
                                           const Shape& full) {
  std::vector<std::int64_t> extents;
  for (const auto& shape : shapes) {
    if (shape && shape->size() != 1) return {};
    extents.push_back(shape ? (*shape)[0] : 0);
  }
  std::vector<Arrangement> found;
  for (Join& join : joins(extents, element_count(full))) {
    Arrangement& a = found.emplace_back();
    a.text = "pieces of the flattened tensor, " + join.text;
    for (std::size_t i = 0; i < extents.size(); ++i)
      a.boxes.push_back({{element_count(full)}, {join.offsets[i]}, {extents[i]}});
  }
  if (found.empty())
    if (auto padded = padded_arrangement(extents, element_count(full)))
      found.push_back(std::move(*padded));
  return found;
}

// Returns true if, of the ranks that share a flattened parameter (all, or groups of consecutive
// ones), the same one of each group alone holds the whole tensor.
bool is_whole_once_in_each_group(std::span<const std::optional<Shape>> shapes) {
  const auto holders =
      static_cast<std::size_t>(std::ranges::count_if(shapes, [](const auto& s) { return !!s; }));
  if (holders == 0 || holders == shapes.size() || shapes.size() % holders != 0) return false;
  const std::size_t group = shapes.size() / holders;
  for (std::size_t i = group; i < shapes.size(); ++i)
    if (shapes[i].has_value() != shapes[i - group].has_value()) return false;
  return true;
}

}  // namespace

Box whole_box(const Shape& full) { return {full, Shape(full.size(), 0), full}; }

std::vector<int> coordinate_of(const DumpMesh& mesh, int rank) {
  auto index = std::find(mesh.ranks.begin(), mesh.ranks.end(), rank) - mesh.ranks.begin();
  std::vector<int> coordinate(mesh.axes.size());
  for (std::size_t axis = mesh.axes.size(); axis-- > 0;) {
    coordinate[axis] = static_cast<int>(index % mesh.axes[axis].size);
    index /= mesh.axes[axis].size;
  }
  return coordinate;
}

std::optional<Box> placed_box(const DumpLayout& layout, const DumpMesh& mesh, int rank) {
  Box box = whole_box(layout.full_shape);
  const std::vector<int> coordinate = coordinate_of(mesh, rank);
  for (std::size_t dim = 0; dim < box.full.size(); ++dim) {
    const auto order = cutting_order(layout, mesh, static_cast<int>(dim));
    if (!order) return std::nullopt;
    for (const std::size_t axis : *order)
      cut(box.offset[dim], box.extent[dim], mesh.axes[axis].size, coordinate[axis]);
  }
  return box;
}

std::vector<Arrangement> possible_arrangements(std::span<const std::optional<Shape>> shapes,
                                               const Shape& full, bool are_flat) {
  const bool whole =
      std::all_of(shapes.begin(), shapes.end(), [&](const auto& s) { return !s || *s == full; });
  std::vector<Arrangement> found;
  if (whole) {
    found.push_back({std::vector<Box>(shapes.size(), whole_box(full)), ""});
    if (are_flat && full.size() == 1 && is_whole_once_in_each_group(shapes))
      std::ranges::move(flat_arrangements(shapes, full), std::back_inserter(found));
    return found;
  }
  if (const auto dim = cut_dimension(shapes, full)) {
    std::vector<std::int64_t> extents;
    for (const auto& shape : shapes) extents.push_back((*shape)[*dim]);
    for (Join& join : joins(extents, full[*dim])) {
      Arrangement& a = found.emplace_back();
      a.text = fmt::format("pieces of dimension {}, {}", *dim, join.text);
      for (std::size_t i = 0; i < extents.size(); ++i) {
        a.boxes.push_back(whole_box(full));
        a.boxes.back().offset[*dim] = join.offsets[i];
        a.boxes.back().extent[*dim] = extents[i];
      }
    }
  }
  if (found.empty()) found = grid_arrangements(shapes, full);
  if (found.empty()) found = flat_arrangements(shapes, full);
  return found;
}

BoxRuns::BoxRuns(Box box) : box_(std::move(box)), size_(box_.size()) {
  std::size_t dim = box_.full.size();
  bool together = true;
  while (together && dim > 0) {
    --dim;
    run_ *= box_.extent[dim];
    together = box_.extent[dim] == box_.full[dim];
  }
  outer_dims_ = dim;
}

BoxRuns::Run BoxRuns::at(std::int64_t element) const {
  std::int64_t rest = element / run_;
  std::int64_t start = element % run_, stride = 1;
  for (std::size_t dim = box_.full.size(); dim-- > 0;) {
    std::int64_t index = box_.offset[dim];
    if (dim < outer_dims_) {
      index += rest % box_.extent[dim];
      rest /= box_.extent[dim];
    }
    start += index * stride;
    stride *= box_.full[dim];
  }
  return {start, run_ - element % run_};
}

void BoxReader::read(std::int64_t begin, std::int64_t count, double* out) const {
  while (count > 0) {
    const BoxRuns::Run run = runs_.at(begin);
    const std::int64_t n = std::min(count, run.length);
    read_elements(tensor_, run.start, n, out);
    begin += n;
    count -= n;
    out += n;
  }
}

}  // namespace distgrad::dumps
