#include "report/worst_first.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace distgrad {
namespace {

int severity(const CaseResult& r) {
  if (r.broken) return 2;
  return r.verdict == Verdict::kMismatch ? 1 : 0;
}

double largest_element(const GradientComparison& g) {
  double largest = 0;
  const auto consider = [&](const std::optional<Array>& part) {
    if (!part) return;
    for (const double x : part->values())
      if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  };
  for (const auto& part : g.truth_by_rank) consider(part);
  consider(g.truth_full);
  return largest;
}

// Returns the error relative to the input's largest element. Relative to itself, an element near
// zero would be the worst of all.
double largest_error(const CaseResult& r) {
  double largest = 0;
  for (const GradientComparison& g : r.gradients) {
    if (g.equal) continue;
    // NaN cannot be sorted, and is as wrong as a gradient gets.
    if (std::isnan(g.max_abs_error) || std::isnan(g.max_rel_error))
      return std::numeric_limits<double>::infinity();
    const double scale = largest_element(g);
    largest = std::max(largest, scale > 0 ? g.max_abs_error / scale : g.max_rel_error);
  }
  return largest;
}

}  // namespace

std::pair<int, double> badness(const CaseResult& r) { return {severity(r), largest_error(r)}; }

std::vector<const CaseResult*> worst_first(const Report& report) {
  using Row = std::pair<std::pair<int, double>, const CaseResult*>;
  std::vector<Row> rows;
  for (const CaseResult& r : report.cases)
    if (is_wrong(r)) rows.emplace_back(badness(r), &r);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.first > b.first; });
  std::vector<const CaseResult*> cases;
  for (const Row& row : rows) cases.push_back(row.second);
  return cases;
}

}  // namespace distgrad
