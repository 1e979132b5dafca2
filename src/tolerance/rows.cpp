#include "tolerance/rows.h"

#include <algorithm>
#include <cmath>

#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

// Normalises dims as torch gives them; none means all.
Dims normalized(const std::vector<std::int64_t>& dims, std::int64_t rank) {
  Dims out;
  for (std::int64_t d : dims) out.push_back(d < 0 ? d + std::max<std::int64_t>(rank, 1) : d);
  if (out.empty())
    for (std::int64_t d = 0; d < rank; ++d) out.push_back(d);
  return out;
}

}  // namespace

Rows rows_of(OpCall& call, const BoundedView& view, const std::vector<std::int64_t>& dims) {
  const auto rank = static_cast<std::int64_t>(view.sizes.size());
  const Dims reduced = normalized(dims, rank);
  Rows rows;
  for (std::int64_t d = 0; d < rank; ++d)
    if (std::find(reduced.begin(), reduced.end(), d) == reduced.end()) rows.order.push_back(d);
  rows.count = 1;
  for (const std::int64_t d : rows.order) rows.count *= view.sizes[d];
  rows.length = 1;
  for (const std::int64_t d : reduced) {
    if (rank == 0) break;
    rows.order.push_back(d);
    rows.length *= view.sizes[d];
  }
  const BoundedView moved = permuted(view, rows.order);
  rows.all = call.read(moved, moved.sizes);
  return rows;
}

Buffer read_or_none(OpCall& call, std::string_view name, c10::IntArrayRef sizes) {
  if (call.tensor(name) == nullptr) return {};
  return call.read(call.required_view(name), sizes);
}

double sum_error(const Buffer& row, const Arithmetic& arithmetic, bool* exact) {
  double errors = 0, magnitude = 0;
  int unit = kNoBit;
  std::int64_t terms = 0;
  bool finite = true;
  for (std::int64_t k = 0; k < row.size; ++k) {
    const double x = row.value(k), e = row.error(k);
    errors += e;
    magnitude += std::fabs(x) + e;
    if (x == 0 && e == 0) continue;
    ++terms;
    unit = std::min(unit, lowest_bit(x));
    finite = finite && std::isfinite(x);
  }
  *exact =
      errors == 0 && (terms <= 1 || !finite ||
                      (magnitude <= std::ldexp(1.0, arithmetic.stored.significand_bits + unit) &&
                       magnitude <= arithmetic.stored.largest));
  if (*exact) return 0;
  if (!(magnitude <= arithmetic.inner.largest)) return kInfinity;
  return errors + arithmetic.inner_gamma(static_cast<double>(terms - 1)) * magnitude;
}

BoundedValue row_sum(const Buffer& row, const Arithmetic& arithmetic, double out) {
  bool exact = false;
  const double error = sum_error(row, arithmetic, &exact);
  return {out, error};
}

BoundedValue extremum(OpCall& call, const Buffer& row, double sign) {
  std::int64_t winner = 0;
  for (std::int64_t k = 0; k < row.size; ++k) {
    if (std::isnan(row.value(k))) return {row.value(k), 0};
    if (sign * row.value(k) > sign * row.value(winner)) winner = k;
  }
  const double value = sign * row.value(winner);
  double low = value - row.error(winner), high = value + row.error(winner);
  for (std::int64_t k = 0; k < row.size; ++k) {
    if (k == winner) continue;
    low = std::max(low, sign * row.value(k) - row.error(k));
    high = std::max(high, sign * row.value(k) + row.error(k));
    call.branch(row.number(winner), row.number(k));
  }
  return {sign * value, std::max(high - value, value - low)};
}

}  // namespace distgrad::tolerance
