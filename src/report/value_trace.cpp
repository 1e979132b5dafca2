#include "report/value_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "model/distance.h"
#include "model/element_index.h"
#include "report/words.h"

namespace distgrad {
namespace {

constexpr std::size_t kShownRanks = 16;
constexpr std::int64_t kFirstElements = 6;
constexpr std::size_t kShownRows = 200;  // steps
constexpr std::size_t kLongestTitle = 400;
// Cotangents come from two float64 simulations, which differ only in the order of their sums.
constexpr double kRoundings = 1e-10;

std::string shown(const Array& array, int digits) {
  if (array.size() <= kFirstElements) return array_text(array, digits);
  std::string text = "[";
  for (std::int64_t i = 0; i < kFirstElements; ++i) text += number_text(array[i], digits) + ", ";
  return fmt::format("{}...] {}", text, index_text(array.shape()));
}

double largest_of(const std::vector<Array>& arrays) {
  double largest = 0;
  for (const Array& array : arrays)
    for (const double v : array.values())
      if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  return largest;
}

bool differs(const Array& truth, const Array& seen, double slack) {
  return truth.shape() != seen.shape() || furthest_apart(truth, seen).distance > slack;
}

// Returns as few digits as distinguish the element that is furthest off.
int digits_for(const Array& truth, const Array& seen) {
  if (truth.shape() != seen.shape()) return 6;
  const std::int64_t i = furthest_apart(truth, seen).element;
  for (const int digits : {6, 9, 12})
    if (truth.size() > 0 && number_text(truth[i], digits) != number_text(seen[i], digits))
      return digits;
  return kShortest;
}

TraceCell cell_of(const Array* truth, const Array* seen, double slack) {
  TraceCell cell;
  const bool both = truth && seen && differs(*truth, *seen, slack);
  const int digits = both ? digits_for(*truth, *seen) : 6;
  if (truth) cell.truth = shown(*truth, digits);
  if (!both) return cell;
  cell.observed = shown(*seen, digits);
  if (truth->shape() != seen->shape() || truth->size() == 1) return cell;
  const std::int64_t i = furthest_apart(*truth, *seen).element;
  cell.furthest =
      fmt::format("{} in place of {} at {}", number_text((*seen)[i], digits),
                  number_text((*truth)[i], digits), index_text(index_of(truth->shape(), i)));
  return cell;
}

const Array* at(const std::vector<Array>& by_rank, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  return r < by_rank.size() ? &by_rank[r] : nullptr;
}

std::vector<TraceCell> cells_of(const std::vector<Array>& truth, const std::vector<Array>& seen,
                                const std::vector<int>& ranks, double roundings) {
  if (truth.empty()) return {};
  const double slack = seen.empty() ? 0 : roundings * largest_of(truth);
  std::vector<TraceCell> cells;
  for (const int rank : ranks) cells.push_back(cell_of(at(truth, rank), at(seen, rank), slack));
  return cells;
}

// Returns how far the forward pass of a right rank may be off: a few roundings.
double roundings_of(DType dtype) {
  return std::max(kRoundings, 8 * std::exp2(-traits(dtype).significand_bits));
}

std::vector<int> shown_ranks(const Explanation& e, int world_size, double roundings) {
  std::set<int> first;
  for (const ExplainedValue& v : e.values)
    for (const bool forward : {true, false}) {
      const auto& truth = forward ? v.value : v.cotangent;
      const auto& seen = forward ? v.observed_value : v.ranks_cotangent;
      if (seen.empty()) continue;
      const double slack = (forward ? roundings : kRoundings) * largest_of(truth);
      for (int r = 0; r < world_size && first.size() < kShownRanks; ++r)
        if (at(truth, r) && at(seen, r) && differs(*at(truth, r), *at(seen, r), slack))
          first.insert(r);
    }
  for (int r = 0; r < world_size && first.size() < kShownRanks; ++r) first.insert(r);
  return {first.begin(), first.end()};
}

std::string cut_title(const std::string& text) {
  return text.size() <= kLongestTitle ? text : text.substr(0, kLongestTitle) + " ...";
}

}  // namespace

ValueTrace trace_of(const Explanation& e, DType dtype) {
  ValueTrace trace;
  std::size_t world_size = 0;
  for (const ExplainedValue& v : e.values)
    world_size = std::max({world_size, v.value.size(), v.cotangent.size()});
  trace.world_size = static_cast<int>(world_size);
  const double roundings = roundings_of(dtype);
  trace.ranks = shown_ranks(e, trace.world_size, roundings);
  for (const ExplainedValue& v : e.values) {
    // The loss comes last; backward starts there.
    if (trace.rows.size() >= kShownRows && v.kind != ExplainedValue::Kind::kLoss && v.mark.empty())
      continue;
    if (!v.ranks_cotangent.empty()) trace.how_known = e.how_known;
    trace.rows.push_back({v.kind, cut_title(v.title), v.mark,
                          cells_of(v.value, v.observed_value, trace.ranks, roundings),
                          cells_of(v.cotangent, v.ranks_cotangent, trace.ranks, kRoundings)});
  }
  if (trace.rows.size() < e.values.size())
    trace.remarks.push_back(
        fmt::format("{} of {} values are shown.", trace.rows.size(), e.values.size()));
  trace.remarks.insert(trace.remarks.end(), e.remarks.begin(), e.remarks.end());
  trace.parting = e.parting;
  trace.measured = e.measured;
  return trace;
}

}  // namespace distgrad
