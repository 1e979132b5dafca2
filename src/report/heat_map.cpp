#include "report/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/distance.h"
#include "report/words.h"

namespace distgrad {
namespace {

using Part = std::optional<Array>;

constexpr std::size_t kMostRows = 64;

// Holds what one row compares.
struct Pair {
  std::string label;
  const Part* seen;
  const Part* truth;
  const Part* bounds;  // null: see `bound`
  double bound;        // of every element, if there are no bounds; NaN: the errors are within them
  bool is_judged;
};

std::string name_of_joined(const GradientComparison& g) {
  if (g.layout == "replicate") return "summed over the ranks";
  return g.layout.starts_with("shard:") ? "joined from the ranks' pieces" : "the full gradient";
}

std::vector<Pair> pairs_of(const GradientComparison& g) {
  const auto bounds = [&](std::size_t i) { return i < g.bounds.size() ? &g.bounds[i] : nullptr; };
  // If a part is too large for bounds, only the worst element's is known.
  const double bound = g.bounds.empty() ? g.bound : std::numeric_limits<double>::quiet_NaN();
  if (g.observed_full)
    return {{name_of_joined(g), &g.observed_full, g.truth_full ? &g.truth_full : nullptr, bounds(0),
             bound, !g.equal}};
  std::vector<Pair> pairs;
  for (std::size_t r = 0; r < g.observed_by_rank.size(); ++r) {
    const Part* truth = g.truth_full                 ? &g.truth_full
                        : r < g.truth_by_rank.size() ? &g.truth_by_rank[r]
                                                     : nullptr;
    pairs.push_back({fmt::format("rank {}", r), &g.observed_by_rank[r], truth,
                     bounds(g.truth_full ? 0 : r), bound, !g.equal});
  }
  return pairs;
}

double largest_error(const Pair& p) {
  if (!p.truth || !*p.truth) return 0;
  const Array& truth = **p.truth;
  if (*p.seen && (*p.seen)->shape() != truth.shape())
    return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::int64_t i = 0; i < truth.size(); ++i)
    largest = std::max(largest, distance(*p.seen ? (**p.seen)[i] : 0, truth[i]));
  return largest;
}

// Returns the pairs furthest off, in their order.
std::vector<Pair> chosen(std::vector<Pair> pairs) {
  if (pairs.size() <= kMostRows) return pairs;
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < pairs.size(); ++i) order.emplace_back(-largest_error(pairs[i]), i);
  std::sort(order.begin(), order.end());
  order.resize(kMostRows);
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  std::vector<Pair> kept;
  for (const auto& [error, i] : order) kept.push_back(std::move(pairs[i]));
  return kept;
}

HeatCell cell_at(const Pair& p, std::int64_t i) {
  const Array& truth = **p.truth;
  const bool has_bounds = p.bounds && *p.bounds && (*p.bounds)->shape() == truth.shape();
  HeatCell cell{i, (**p.seen)[i], truth[i], 0, has_bounds ? (**p.bounds)[i] : p.bound, false};
  cell.error = distance(cell.observed, cell.truth);
  cell.is_off = p.is_judged && cell.error > cell.bound;
  return cell;
}

bool is_worse(const HeatCell& a, const HeatCell& b) {
  return a.is_off != b.is_off ? a.is_off : a.error > b.error;
}

HeatRow row_of(const Pair& p, std::size_t most_cells) {
  HeatRow row{p.label, "", {}, 1, {}};
  if (!p.truth || !*p.truth) return row;
  const Array& truth = **p.truth;
  row.shape = truth.shape();
  if (!*p.seen) {
    row.lacking = "no gradient (None)";
  } else if ((*p.seen)->shape() != truth.shape()) {
    row.lacking = fmt::format("of shape {} in place of {}", index_text((*p.seen)->shape()),
                              index_text(truth.shape()));
  }
  if (!row.lacking.empty()) return row;
  const auto most = static_cast<std::int64_t>(std::max<std::size_t>(most_cells, 1));
  row.block = std::max<std::int64_t>(1, (truth.size() + most - 1) / most);
  for (std::int64_t first = 0; first < truth.size(); first += row.block) {
    HeatCell worst = cell_at(p, first);
    for (std::int64_t i = first + 1; i < std::min(first + row.block, truth.size()); ++i)
      if (const HeatCell other = cell_at(p, i); is_worse(other, worst)) worst = other;
    row.cells.push_back(worst);
  }
  return row;
}

}  // namespace

HeatMap heat_map(const GradientComparison& g, std::size_t cells) {
  HeatMap map{g.input, g.layout, g.equal, 0, 0, {}, {}};
  std::vector<Pair> pairs = pairs_of(g);
  map.all_rows = pairs.size();
  if (g.observed_full) map.differing_ranks = g.differing_ranks;
  pairs = chosen(std::move(pairs));
  for (const Pair& p : pairs) {
    map.rows.push_back(row_of(p, cells / pairs.size()));
    if (!p.truth || !*p.truth) continue;
    for (const double v : (*p.truth)->values())
      if (std::isfinite(v)) map.largest_truth = std::max(map.largest_truth, std::abs(v));
  }
  return map;
}

}  // namespace distgrad
