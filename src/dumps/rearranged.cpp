#include "dumps/rearranged.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "model/ranks_text.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

constexpr double kLeft = 1.0 / 16;  // of the squares of the errors, as in every explanation

using Group = std::vector<std::size_t>;  // of holdings

// --- Sums of parts ---

// Returns what the group's parts should add up to, each counted once, or nothing if they are no
// parts.
std::optional<Stream> parts_of(const Measured& m, const Group& group) {
  Stream sum;
  std::vector<const Box*> boxes;
  for (const std::size_t h : group) {
    const Holding& holding = m.holding(h);
    if (!holding.observed || holding.box.extent != m.holding(group[0]).box.extent)
      return std::nullopt;
    const bool is_new = std::none_of(boxes.begin(), boxes.end(),
                                     [&](const Box* box) { return *box == holding.box; });
    if (!is_new) continue;
    boxes.push_back(&holding.box);
    sum.terms.insert(sum.terms.end(), holding.expected.terms.begin(), holding.expected.terms.end());
  }
  if (boxes.size() < 2) return std::nullopt;
  return sum;
}

std::optional<NamedFactor> factor_over(const Measured& m, const AxisGroups& axis,
                                       const FactorNames& names, std::optional<double> shown) {
  // Fewer elements are a multiple of anything by chance, unless other parameters showed the factor.
  const std::int64_t telling = shown ? 4 : 8;
  std::optional<NamedFactor> factor;
  for (const Group& group : axis.groups) {
    const std::optional<Stream> sum = parts_of(m, group);
    if (!sum || sum->size() < telling) return std::nullopt;
    for (const std::size_t h : group) {
      const Differences d = measure(*m.holding(h).observed, *sum, m.bound);
      if (d.expected_squares <= 0 || !std::isfinite(d.product) || d.product == 0)
        return std::nullopt;
      if (!factor)
        factor = names.name(shown.value_or(d.product / d.expected_squares), m.factor_precision());
      if (!agrees(*m.holding(h).observed, *sum, factor->value, m.bound, d.max_expected,
                  kLeft * m.differences[h].error_squares))
        return std::nullopt;
    }
  }
  return factor;
}

// --- Rows ---

struct Row {
  std::int64_t at;  // in the whole tensor
  const double* values;
};

// Returns the elements of a piece with `dim` first.
std::vector<double> with_dim_first(const Stream& stream, const Shape& extent, std::size_t dim) {
  std::vector<double> values(static_cast<std::size_t>(stream.size()));
  stream.read(0, stream.size(), values.data());
  if (dim == 0) return values;
  std::int64_t outer = 1, inner = 1;
  for (std::size_t d = 0; d < dim; ++d) outer *= extent[d];
  for (std::size_t d = dim + 1; d < extent.size(); ++d) inner *= extent[d];
  const std::int64_t n = extent[dim];
  std::vector<double> moved(values.size());
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t row = 0; row < n; ++row)
      std::copy_n(values.begin() + (o * n + row) * inner, inner,
                  moved.begin() + (row * outer + o) * inner);
  return moved;
}

// Holds the rows along one dimension: each index is a row.
class Rows {
  static constexpr std::int64_t kUnknown = -1;

 public:
  Rows(const Measured& m, std::size_t dim) : m_(m), dim_(dim) {}

  // Returns false if the pieces are not rows of the whole, or are too large.
  bool read() {
    constexpr std::int64_t kMost = std::int64_t{1} << 24;  // elements in memory
    if (m_.parameter.by_rank || m_.parameter.shape.size() <= dim_) return false;
    length_ =
        element_count(m_.parameter.shape) / std::max<std::int64_t>(1, m_.parameter.shape[dim_]);
    std::int64_t total = 0;
    for (std::size_t h = 0; h < m_.differences.size(); ++h) {
      const Holding& holding = m_.holding(h);
      if (!holding.observed || !holds_rows(holding.box)) return false;
      total += holding.size();
    }
    if (total > kMost || length_ == 0) return false;
    std::map<std::int64_t, bool> seen;
    for (std::size_t h = 0; h < m_.differences.size(); ++h) {
      const Box& box = m_.holding(h).box;
      kept_.push_back(with_dim_first(m_.holding(h).expected, box.extent, dim_));
      for (std::int64_t row = 0; row < box.extent[dim_]; ++row)
        if (seen.emplace(box.offset[dim_] + row, true).second)
          truth_.push_back({box.offset[dim_] + row, kept_.back().data() + row * length_});
    }
    constexpr std::size_t kFewest = 8;  // numbers; fewer are in another order by chance
    if (truth_.size() < 2 || truth_.size() * static_cast<std::size_t>(length_) < kFewest)
      return false;
    std::sort(truth_.begin(), truth_.end(),
              [](const Row& a, const Row& b) { return a.values[0] < b.values[0]; });
    for (std::size_t i = 0; i < truth_.size(); ++i) index_of_[truth_[i].at] = i;
    return true;
  }

  // Returns, by holding, the rows of the whole that it has, in its order. Empty if they are not the
  // rows that all holdings should have, each as often, in another order.
  std::vector<std::vector<std::int64_t>> all() const {
    std::vector<std::vector<std::int64_t>> found;
    std::vector<std::vector<double>> observed;
    std::vector<int> left(truth_.size());  // how many are to have it and are not known yet
    for (std::size_t h = 0; h < m_.differences.size(); ++h) {
      const Holding& holding = m_.holding(h);
      observed.push_back(with_dim_first(*holding.observed, holding.box.extent, dim_));
      found.emplace_back(holding.box.extent[dim_], kUnknown);
      for (std::size_t row = 0; row < found[h].size(); ++row) {
        const std::size_t own = own_index(h, row);
        if (are_equal(&observed[h][row * length_], truth_[own].values))
          found[h][row] = truth_[own].at;
        else
          ++left[own];
      }
    }
    for (std::size_t h = 0; h < found.size(); ++h) {
      std::vector<bool> taken(truth_.size());  // no row stands for two of one holding
      for (const std::int64_t at : found[h])
        if (at != kUnknown) taken[index_of_.at(at)] = true;
      for (std::size_t row = 0; row < found[h].size(); ++row) {
        if (found[h][row] != kUnknown) continue;
        const std::size_t at = match(&observed[h][row * length_], left, taken);
        if (at == truth_.size()) return {};
        --left[at];
        taken[at] = true;
        found[h][row] = truth_[at].at;
      }
    }
    return found;
  }

 private:
  bool holds_rows(const Box& box) const {
    if (box.full != m_.parameter.shape) return false;
    for (std::size_t dim = 0; dim < box.extent.size(); ++dim)
      if (dim != dim_ && box.extent[dim] != m_.parameter.shape[dim]) return false;
    return true;
  }

  bool are_equal(const double* a, const double* b) const {
    const double limit = m_.bound.of_element(largest());
    return std::equal(a, a + length_, b,
                      [&](double x, double y) { return std::abs(x - y) <= limit; });
  }

  std::size_t own_index(std::size_t h, std::size_t row) const {
    return index_of_.at(m_.holding(h).box.offset[dim_] + static_cast<std::int64_t>(row));
  }

  std::size_t match(const double* values, const std::vector<int>& left,
                    const std::vector<bool>& taken) const {
    const double limit = m_.bound.of_element(largest());
    auto at = std::lower_bound(truth_.begin(), truth_.end(), values[0] - limit,
                               [](const Row& row, double v) { return row.values[0] < v; });
    for (; at != truth_.end() && at->values[0] <= values[0] + limit; ++at) {
      const auto index = static_cast<std::size_t>(at - truth_.begin());
      if (left[index] > 0 && !taken[index] && are_equal(values, at->values)) return index;
    }
    return truth_.size();
  }

  double largest() const {
    double found = 0;
    for (const Differences& d : m_.differences) found = std::max(found, d.max_expected);
    return found;
  }

  const Measured& m_;
  const std::size_t dim_;
  std::int64_t length_ = 0;
  std::vector<std::vector<double>> kept_;
  std::vector<Row> truth_;
  std::map<std::int64_t, std::size_t> index_of_;  // of truth_, by Row::at
};

std::string reordered_text(std::size_t dim) {
  if (dim > 1) return fmt::format("the right indices of dimension {} in another order", dim);
  return fmt::format("the right {} in another order", dim == 0 ? "rows" : "columns");
}

std::optional<std::string> reordered_along(const Measured& m, std::size_t dim) {
  Rows rows(m, dim);
  if (!rows.read()) return std::nullopt;
  const std::vector<std::vector<std::int64_t>> all = rows.all();
  const std::string what = dim == 0 ? "row" : dim == 1 ? "column" : "index";
  std::string text;
  for (std::size_t h = 0; h < all.size(); ++h) {
    const std::vector<std::int64_t>& found = all[h];
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < found.size() && parts.size() < 3; ++i) {
      const std::int64_t own = m.holding(h).box.offset[dim] + static_cast<std::int64_t>(i);
      if (found[i] != own) parts.push_back(fmt::format("{} is {}", own, found[i]));
    }
    if (parts.empty() || !text.empty()) continue;
    text = fmt::format("{}: ", reordered_text(dim));
    if (!m.holding(h).ranks.empty()) text += "on " + ranks_text(m.holding(h).ranks) + " ";
    text += fmt::format("{} {} of the reference, ...", what, fmt::join(parts, ", "));
  }
  if (text.empty()) return std::nullopt;
  return text;
}

// --- Cut over another axis ---

const Group* group_with(const AxisGroups& axis, std::size_t holding) {
  for (const Group& group : axis.groups)
    if (std::find(group.begin(), group.end(), holding) != group.end()) return &group;
  return nullptr;
}

// Returns true if each rank has the piece of the member of its `meant` group whose place equals the
// rank's place in its `taken` group.
bool is_cut_over(const AxisGroups& taken, const AxisGroups& meant, const Parameter& p,
                 const std::vector<Mistake>& mistakes) {
  if (taken.kind != AxisGroups::Kind::kAxis || meant.kind != AxisGroups::Kind::kAxis ||
      taken.size != meant.size)
    return false;
  for (std::size_t h = 0; h < mistakes.size(); ++h) {
    const Group* own = group_with(meant, h);
    const Group* other = group_with(taken, h);
    if (!own || !other || own->size() != other->size()) return false;
    const auto place =
        static_cast<std::size_t>(std::find(other->begin(), other->end(), h) - other->begin());
    const std::size_t held = mistakes[h].kind == Mistake::Kind::kNone ? h : mistakes[h].piece_of;
    if (!(p.holdings[(*own)[place]].box == p.holdings[held].box)) return false;
  }
  return true;
}

}  // namespace

std::optional<SummedParts> summed_parts(const Measured& m, const FactorNames& names,
                                        const std::vector<ShownSum>& shown) {
  if (m.parameter.by_rank) return std::nullopt;
  for (const AxisGroups& axis : m.parameter.axes) {
    if (axis.groups.empty()) continue;
    std::size_t held = 0;
    for (const Group& group : axis.groups) held += group.size();
    if (held != m.differences.size()) continue;
    std::optional<NamedFactor> factor = factor_over(m, axis, names, std::nullopt);
    for (const auto& [name, value] : shown)
      if (!factor && name == axis.name) factor = factor_over(m, axis, names, value);
    if (!factor) continue;
    const bool is_all = axis.kind == AxisGroups::Kind::kAll;
    std::string text = fmt::format("the sum over {} of the pieces that they should hold",
                                   is_all ? "all ranks" : "the ranks of " + axis.name);
    const Group& group = axis.groups.front();
    if (parts_of(m, group)->terms.size() < group.size()) text += ", each piece once";
    if (std::abs(factor->value - 1) > 1e-3)
      text = fmt::format("{:.4g} times {}", factor->value, text);
    return SummedParts{axis.name, std::move(text), *factor};
  }
  return std::nullopt;
}

std::optional<Reordered> reordered(const Measured& m) {
  for (std::size_t dim = 0; dim < m.parameter.shape.size(); ++dim)
    if (auto text = reordered_along(m, dim)) return Reordered{reordered_text(dim), *text};
  return std::nullopt;
}

std::optional<OtherCut> other_cut(const Parameter& p, const std::vector<Mistake>& mistakes) {
  for (const AxisGroups& meant : p.axes)
    for (const AxisGroups& taken : p.axes)
      if (&meant != &taken && is_cut_over(taken, meant, p, mistakes))
        return OtherCut{taken.name, meant.name};
  return std::nullopt;
}

}  // namespace distgrad::dumps
