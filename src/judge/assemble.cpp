#include "judge/assemble.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "model/element_index.h"
#include "model/layout_name.h"

namespace distgrad {
namespace {

using Kind = Layout::Kind;

constexpr std::size_t kBlock = 2048;  // elements summed at a time: they stay in the first cache

PlacedAxis whole_world(const Program& program, const Layout& layout) {
  PlacedAxis axis{.layout = layout, .size = program.world_size, .coordinate = {}, .sync = {}};
  for (int r = 0; r < program.world_size; ++r) axis.coordinate.push_back(r);
  return axis;
}

PlacedAxis along(const Program& program, const Group& group, const Layout& layout) {
  PlacedAxis axis{.layout = layout, .size = 1, .coordinate = {}, .sync = {}};
  axis.coordinate.resize(to_index(program.world_size));
  for (const std::vector<int>& list : group.partition) {
    axis.size = static_cast<int>(list.size());
    for (std::size_t i = 0; i < list.size(); ++i)
      axis.coordinate.at(to_index(list[i])) = static_cast<int>(i);
  }
  return axis;
}

std::optional<Input::Sync> sync_along(const Input& input, const std::string& axis,
                                      const Layout& layout) {
  if (layout.kind != Kind::kReplicate) return std::nullopt;
  for (const auto& [name, how] : input.sync)
    if (name.empty() || name == axis) return how;
  return std::nullopt;
}

bool stands_alone(const PlacedAxis& axis) {
  return axis.layout.kind == Kind::kLocal || axis.layout.kind == Kind::kInvariant || axis.sync;
}

std::string word(const Layout& layout) {
  const std::string name(layout_name(layout.kind));
  return layout.kind == Kind::kShard ? name + ":" + std::to_string(layout.dim) : name;
}

// Returns the box that `rank` holds: one torch.chunk after another, in pieces of ceil(n / size).
Piece piece_of(const std::vector<PlacedAxis>& axes, const Shape& full, int rank) {
  Piece piece{.start = Shape(full.size(), 0), .extent = full, .ranks = {rank}};
  for (const PlacedAxis& axis : axes) {
    if (axis.layout.kind != Kind::kShard) continue;
    const int dims = static_cast<int>(full.size());
    const int dim = axis.layout.dim < 0 ? axis.layout.dim + dims : axis.layout.dim;
    if (dim < 0 || dim >= dims) throw std::logic_error("sharded along a dim the tensor lacks");
    std::int64_t& extent = piece.extent[to_index(dim)];
    const std::int64_t each = (extent + axis.size - 1) / axis.size;
    const std::int64_t before = std::min(axis.coordinate[to_index(rank)] * each, extent);
    piece.start[to_index(dim)] += before;
    extent = std::min(each, extent - before);
  }
  return piece;
}

// Calls f(offset in full, offset in box, run) for each contiguous run of the box, in order.
template <class F>
void for_each_run(const Shape& full, const Shape& start, const Shape& extent, const F& f) {
  if (element_count(extent) == 0) return;
  // A run joins the trailing dims that are taken whole and the first one that is not.
  std::size_t outer = full.size();
  std::int64_t run = 1;
  while (outer > 0) {
    --outer;
    run *= extent[outer];
    if (extent[outer] != full[outer]) break;
  }
  std::vector<std::int64_t> strides(full.size());
  std::int64_t product = 1;
  for (std::size_t d = full.size(); d-- > 0;) {
    strides[d] = product;
    product *= full[d];
  }
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < full.size(); ++d) offset += start[d] * strides[d];
  std::vector<std::int64_t> index(outer, 0);
  for (std::int64_t box = 0;; box += run) {
    f(offset, box, run);
    std::size_t d = outer;
    while (d > 0) {
      --d;
      offset += strides[d];
      if (++index[d] < extent[d]) break;
      offset -= index[d] * strides[d];
      index[d] = 0;
      if (d == 0) return;
    }
    if (outer == 0) return;
  }
}

// Adds equally long terms with compensation. The sum is correctly rounded but for second-order
// effects, so that N ranks cost one rounding and not N, and it is exact if every partial sum is.
void add_up(const std::vector<std::span<const double>>& terms, std::span<double> out) {
  std::array<double, kBlock> correction;
  for (std::size_t from = 0; from < out.size(); from += kBlock) {
    const std::size_t n = std::min(kBlock, out.size() - from);
    double* sum = out.data() + from;
    std::copy_n(terms[0].data() + from, n, sum);
    std::fill_n(correction.begin(), n, 0.0);
    for (std::size_t t = 1; t < terms.size(); ++t) {
      const double* term = terms[t].data() + from;
      for (std::size_t i = 0; i < n; ++i) {  // Knuth's TwoSum
        const double before = sum[i], after = before + term[i];
        const double added = after - before;
        correction[i] += (before - (after - added)) + (term[i] - added);
        sum[i] = after;
      }
    }
    for (std::size_t i = 0; i < n; ++i)
      if (std::isfinite(sum[i])) sum[i] += correction[i];
  }
}

Array sum_of(const std::vector<const Array*>& terms) {
  if (terms.size() == 1) return *terms[0];
  std::vector<double> sum(static_cast<std::size_t>(terms[0]->size()));
  std::vector<std::span<const double>> spans;
  for (const Array* term : terms) spans.push_back(term->values());
  add_up(spans, sum);
  return Array(terms[0]->shape(), std::move(sum));
}

// Notes in `part` what is missing or misshapen, and returns the sum of the rest, if any.
std::optional<Array> sum_of_piece(const Piece& piece, const GradientByRank& observed, Part& part) {
  std::vector<const Array*> terms;
  const bool has_elements = element_count(piece.extent) > 0;
  for (const int rank : piece.ranks) {
    const std::optional<Array>& gradient = observed.at(to_index(rank));
    if (!gradient) {
      if (has_elements) part.missing.push_back(rank);
    } else if (gradient->shape() != piece.extent) {
      part.misshapen.push_back(rank);
    } else {
      terms.push_back(&*gradient);
    }
  }
  part.is_sum = part.is_sum || terms.size() > 1;
  if (terms.empty()) {
    part.lacks_a_piece = part.lacks_a_piece || has_elements;
    return std::nullopt;
  }
  return sum_of(terms);
}

void join(const Shape& full, const GradientByRank& observed, Part& part) {
  std::vector<std::optional<Array>> sums;
  for (const Piece& piece : part.pieces) sums.push_back(sum_of_piece(piece, observed, part));
  std::sort(part.missing.begin(), part.missing.end());
  std::sort(part.misshapen.begin(), part.misshapen.end());
  if (!part.misshapen.empty()) return;
  if (std::none_of(sums.begin(), sums.end(), [](const auto& s) { return s.has_value(); })) {
    if (!part.lacks_a_piece) part.value = Array(full, {});  // no elements: None is right
    return;
  }
  if (sums.size() == 1) {
    part.value = std::move(sums[0]);
    return;
  }
  std::vector<double> joined(static_cast<std::size_t>(element_count(full)), 0.0);
  for (std::size_t p = 0; p < sums.size(); ++p) {
    if (!sums[p]) continue;
    const double* source = sums[p]->values().data();
    for_each_run(full, part.pieces[p].start, part.pieces[p].extent,
                 [&](std::int64_t whole, std::int64_t box, std::int64_t run) {
                   std::copy_n(source + box, run, joined.data() + whole);
                 });
  }
  part.value = Array(full, std::move(joined));
}

std::vector<Part> ranks_alone(const GradientByRank& observed) {
  std::vector<Part> parts;
  for (std::size_t r = 0; r < observed.size(); ++r) {
    Part part;
    part.ranks = {static_cast<int>(r)};
    part.value = observed[r];
    if (!observed[r]) part.missing = part.ranks;
    part.lacks_a_piece = !observed[r];
    parts.push_back(std::move(part));
  }
  return parts;
}

// Groups the ranks that differ only along `axis`.
std::vector<std::vector<int>> lines_along(const std::vector<PlacedAxis>& axes, std::size_t axis,
                                          int world_size) {
  std::vector<std::pair<std::vector<int>, std::vector<int>>> lines;
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<int> others;
    for (std::size_t a = 0; a < axes.size(); ++a)
      if (a != axis) others.push_back(axes[a].coordinate[to_index(rank)]);
    const auto found = std::find_if(lines.begin(), lines.end(),
                                    [&](const auto& line) { return line.first == others; });
    if (found == lines.end()) {
      lines.push_back({std::move(others), {rank}});
    } else {
      found->second.push_back(rank);
    }
  }
  std::vector<std::vector<int>> result;
  for (auto& line : lines) result.push_back(std::move(line.second));
  return result;
}

}  // namespace

int Part::holder_of(const std::vector<std::int64_t>& index) const {
  for (const Piece& piece : pieces) {
    bool inside = true;
    for (std::size_t d = 0; d < index.size(); ++d)
      inside = inside && index[d] >= piece.start[d] && index[d] < piece.start[d] + piece.extent[d];
    if (inside) return piece.ranks.front();
  }
  return ranks.front();
}

std::vector<PlacedAxis> placed_axes(const Program& program, const Input& input) {
  std::vector<PlacedAxis> axes;
  const bool one_word = input.layout.size() == 1 && input.layout[0].axis.empty();
  if (!one_word) {
    for (const AxisLayout& entry : input.layout) {
      const Group* group = program.group_named(entry.axis);
      if (!group) throw std::logic_error("no mesh axis " + entry.axis);
      axes.push_back(along(program, *group, entry.layout));
      axes.back().sync = sync_along(input, entry.axis, entry.layout);
    }
    return axes;
  }
  const Layout& layout = input.layout[0].layout;
  const bool by_axis = layout.kind == Kind::kReplicate || layout.kind == Kind::kInvariant;
  if (by_axis) {
    for (const Group* group : program.mesh()) {
      axes.push_back(along(program, *group, layout));
      axes.back().sync = sync_along(input, group->name, layout);
    }
  }
  if (axes.empty()) {
    axes.push_back(whole_world(program, layout));
    axes.back().sync = sync_along(input, "", layout);
  }
  return axes;
}

std::string layout_text(const Input& input) {
  std::string text;
  for (const AxisLayout& entry : input.layout)
    text += (text.empty() ? "" : ",") + (entry.axis.empty() ? "" : entry.axis + "=") +
            word(entry.layout);
  return text;
}

std::vector<Part> assemble(const Program& program, const Input& input, const Shape& full,
                           const GradientByRank& observed) {
  if (input.is_local()) return ranks_alone(observed);
  const std::vector<PlacedAxis> axes = placed_axes(program, input);
  std::vector<std::pair<std::vector<int>, Part>> parts;  // by coordinates that stand alone
  for (int rank = 0; rank < program.world_size; ++rank) {
    std::vector<int> alone;
    for (const PlacedAxis& axis : axes)
      if (stands_alone(axis)) alone.push_back(axis.coordinate[to_index(rank)]);
    auto found = std::find_if(parts.begin(), parts.end(),
                              [&](const auto& entry) { return entry.first == alone; });
    if (found == parts.end()) found = parts.insert(parts.end(), {std::move(alone), Part{}});
    Part& part = found->second;
    part.ranks.push_back(rank);
    Piece piece = piece_of(axes, full, rank);
    const auto same = std::find_if(part.pieces.begin(), part.pieces.end(), [&](const Piece& p) {
      return p.start == piece.start && p.extent == piece.extent;
    });
    if (same == part.pieces.end()) {
      part.pieces.push_back(std::move(piece));
    } else {
      same->ranks.push_back(rank);
    }
  }
  std::vector<Part> result;
  for (auto& entry : parts) {
    join(full, observed, entry.second);
    result.push_back(std::move(entry.second));
  }
  return result;
}

GradientByRank synchronised(const Program& program, const Input& input, GradientByRank gradients) {
  const std::vector<PlacedAxis> axes = placed_axes(program, input);
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (!axes[a].sync) continue;
    for (const std::vector<int>& line : lines_along(axes, a, program.world_size)) {
      std::vector<const Array*> terms;
      for (const int rank : line)
        if (gradients[to_index(rank)]) terms.push_back(&*gradients[to_index(rank)]);
      if (terms.empty()) continue;
      const double divisor =
          axes[a].sync == Input::Sync::kMean ? static_cast<double>(line.size()) : 1;
      const std::optional<Array> total = divided({sum_of(terms)}, divisor)[0];
      for (const int rank : line) gradients[to_index(rank)] = total;
    }
  }
  return gradients;
}

GradientByRank divided(const GradientByRank& gradients, double divisor) {
  if (divisor == 1) return gradients;
  GradientByRank result;
  for (const std::optional<Array>& gradient : gradients) {
    result.emplace_back();
    if (!gradient) continue;
    std::vector<double> values(gradient->values().begin(), gradient->values().end());
    for (double& v : values) v /= divisor;
    result.back() = Array(gradient->shape(), std::move(values));
  }
  return result;
}

Array box_of(const Array& full, const Shape& start, const Shape& extent) {
  if (extent == full.shape()) return full;
  std::vector<double> values(static_cast<std::size_t>(element_count(extent)));
  for_each_run(full.shape(), start, extent,
               [&](std::int64_t whole, std::int64_t box, std::int64_t run) {
                 std::copy_n(full.values().data() + whole, run, values.data() + box);
               });
  return Array(extent, std::move(values));
}

}  // namespace distgrad
