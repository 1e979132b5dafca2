#include "report/worst_first.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "report/text.h"

namespace distgrad {
namespace {

int severity(const CaseResult& r) {
  if (r.broken) return 2;
  return r.verdict == Verdict::kMismatch ? 1 : 0;
}

double largest_error(const CaseResult& r) {
  double largest = 0;
  for (const GradientComparison& g : r.gradients) {
    if (g.equal) continue;
    // Not a number sorts nowhere, and is as wrong as a gradient gets.
    if (std::isnan(g.max_rel_error)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, g.max_rel_error);
  }
  return largest;
}

}  // namespace

std::vector<const CaseResult*> worst_first(const Report& report) {
  using Row = std::tuple<int, double, const CaseResult*>;
  std::vector<Row> rows;
  for (const CaseResult& r : report.cases)
    if (is_wrong(r)) rows.emplace_back(severity(r), largest_error(r), &r);
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::pair(std::get<0>(a), std::get<1>(a)) > std::pair(std::get<0>(b), std::get<1>(b));
  });
  std::vector<const CaseResult*> cases;
  for (const Row& row : rows) cases.push_back(std::get<2>(row));
  return cases;
}

}  // namespace distgrad
