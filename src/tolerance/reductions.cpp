// Reductions and row operators: sums, extrema, products, moments, softmax, normalisations.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tolerance/products.h"
#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kExpUlps = 2;

// A tensor read with some dims last: rows of `length` elements, in row-major order of the other
// dims.
struct Rows {
  Buffer all;
  std::int64_t count = 0;
  std::int64_t length = 0;
  Dims order;
  Buffer row(std::int64_t i) const { return all.row(i * length, length); }
};

// Dims as torch gives them; none: all.
Dims normalized(const std::vector<std::int64_t>& dims, std::int64_t rank) {
  Dims out;
  for (std::int64_t d : dims) out.push_back(d < 0 ? d + std::max<std::int64_t>(rank, 1) : d);
  if (out.empty())
    for (std::int64_t d = 0; d < rank; ++d) out.push_back(d);
  return out;
}

Rows rows_of(OpCall& call, const View& view, const std::vector<std::int64_t>& dims) {
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
  const View moved = permuted(view, rows.order);
  rows.all = call.read(moved, moved.sizes);
  return rows;
}

std::vector<std::int64_t> dims_argument(const OpCall& call) { return call.integers("dim"); }

// One BoundedValue a row, given to the result's elements, which are in the same order with and
// without keepdim.
template <typename F>
void reduce_rows(OpCall& call, const at::Tensor& result, const Rows& rows, const F& f) {
  const Buffer out = call.read(call.context().shadows.view_of(result), result.sizes());
  double* errors = call.arena().doubles(out.size);
  const InArithmetic in(call.arithmetic());
  for (std::int64_t i = 0; i < out.size; ++i) {
    call.at_element(i, result.sizes());
    errors[i] = stored_error(f(rows.row(i), out.value(i)), out.value(i));
  }
  call.write_errors(result, out, errors);
}

// f(row, out row, errors): for operators whose result has the argument's shape.
template <typename F>
void map_rows(OpCall& call, const at::Tensor& result, const Rows& rows, const F& f) {
  const at::Tensor moved = result.permute(c10::IntArrayRef(rows.order));
  const Buffer out = call.read(call.context().shadows.view_of(moved), moved.sizes());
  double* errors = call.arena().doubles(out.size);
  const InArithmetic in(call.arithmetic());
  for (std::int64_t i = 0; i < rows.count && rows.length > 0; ++i)
    f(rows.row(i), out.row(i * rows.length, rows.length), errors + i * rows.length);
  call.write_errors(moved, out, errors);
}

bool any_cells(const Rows& rows) { return rows.all.cells != nullptr; }

// ---- sums

// The rows are the ranks' terms (or those of a stack): added in any order, each addition rounded,
// and still a sum for what is added to it later.
void sum_of_stack(OpCall& call, const Rows& rows, double divisor) {
  const at::Tensor& result = call.result();
  const Arithmetic& arithmetic = call.arithmetic();
  const Buffer out = call.read(call.context().shadows.view_of(result), result.sizes());
  Cell* cells = call.arena().cells(out.size);
  bool any = false;
  for (std::int64_t i = 0; i < out.size; ++i) {
    const Buffer row = rows.row(i);
    Cell total;
    for (std::int64_t k = 0; k < row.size; ++k)
      total = merged(total, expanded(row.cell(k), row.value(k)));
    cells[i] = finished(total, arithmetic);
    if (!std::isfinite(out.value(i))) {
      bool inexact = false;
      for (std::int64_t k = 0; k < row.size; ++k) inexact |= row.error(k) != 0;
      cells[i] = inexact ? inexact_cell(out.value(i), kInfinity) : Cell();
    } else if (divisor != 1) {
      const InArithmetic in(arithmetic);
      BoundedValue mean = BoundedValue{out.value(i) * divisor, cells[i].error} / constant(divisor);
      if (!mean.exact() || cells[i].terms > 1) {
        // As for a sum divided by a number: the terms may be divided instead.
        mean.error += 2 * (arithmetic.stored.unit_roundoff + arithmetic.simulated) *
                      cells[i].magnitude / divisor;
      }
      cells[i] = mean.exact() ? Cell() : inexact_cell(out.value(i), mean.error);
    }
    any |= !cells[i].plain();
  }
  call.write(result, any ? cells : nullptr);
}

bool sums_a_stack(OpCall& call, const std::vector<std::int64_t>& dims) {
  const at::Tensor* self = call.tensor("self");
  return self != nullptr && dims.size() == 1 && (dims[0] == 0 || dims[0] == -self->dim()) &&
         call.context().shadows.is_stacked(*self);
}

BoundedValue row_sum(const Buffer& row, const Arithmetic& arithmetic, double out) {
  bool exact = false;
  const double error = sum_error(row, arithmetic, &exact);
  return {out, error};
}

void sum(OpCall& call) {
  const at::Tensor& result = call.result();
  if (!is_real_floating(result)) return;
  const std::vector<std::int64_t> dims = dims_argument(call);
  const Rows rows = rows_of(call, call.required_view("self"), dims);
  if (sums_a_stack(call, dims)) return sum_of_stack(call, rows, 1);
  reduce_rows(call, result, rows,
              [&](const Buffer& row, double out) { return row_sum(row, call.arithmetic(), out); });
}

BoundedValue over_count(BoundedValue total, double n, const Arithmetic& arithmetic) {
  if (n == 1) return total;
  // The sum is rounded to the stored type first, then divided, or multiplied by a rounded 1/n.
  if (arithmetic.narrows() && !(total.exact() && fits(arithmetic.stored, total.value)))
    total.error += arithmetic.stored_rounding(std::fabs(total.value) + total.error);
  BoundedValue mean = total / constant(n);
  int exponent = 0;
  const bool power_of_two = std::frexp(n, &exponent) == 0.5;
  if (!power_of_two && total.value != 0) mean = computed(mean.value, mean.error, 0.5);
  return mean;
}

void mean(OpCall& call) {
  const std::vector<std::int64_t> dims = dims_argument(call);
  const Rows rows = rows_of(call, call.required_view("self"), dims);
  const auto n = static_cast<double>(rows.length);
  if (sums_a_stack(call, dims)) return sum_of_stack(call, rows, n);
  reduce_rows(call, call.result(), rows, [&](const Buffer& row, double out) {
    double total = 0;
    for (std::int64_t k = 0; k < row.size; ++k) total += row.value(k);
    (void)out;
    return over_count(row_sum(row, call.arithmetic(), total), n, call.arithmetic());
  });
}

void trace(OpCall& call) {
  const View view = call.required_view("self");
  View diagonal = view;
  diagonal.sizes = {std::min(view.sizes[0], view.sizes[1])};
  diagonal.strides = {view.strides[0] + view.strides[1]};
  const Rows rows = rows_of(call, diagonal, {});
  reduce_rows(call, call.result(), rows,
              [&](const Buffer& row, double out) { return row_sum(row, call.arithmetic(), out); });
}

// Partial sums in any order; scans on a GPU round each to the stored type.
void cumulative_sum(OpCall& call) {
  const Rows rows = rows_of(call, call.required_view("self"), dims_argument(call));
  map_rows(call, call.result(), rows, [&](const Buffer& row, const Buffer& out, double* errors) {
    Cell total;
    for (std::int64_t k = 0; k < row.size; ++k) {
      total = merged(total, expanded(row.cell(k), row.value(k)));
      errors[k] = std::isfinite(out.value(k)) ? finished(total, call.arithmetic()).error : 0;
    }
  });
}

// ---- products

// Factors in any order, as in a product over ranks.
BoundedValue row_product(const Buffer& row, const Arithmetic& arithmetic) {
  if (row.size == 0) return constant(1);
  ProductFigures product = factor(row.number(0));
  double value = row.value(0);
  for (std::int64_t k = 1; k < row.size; ++k) {
    product = multiplied(product, value, factor(row.number(k)), row.value(k), arithmetic);
    value *= row.value(k);
  }
  return {value, product_error(product, arithmetic)};
}

void product(OpCall& call) {
  if (!is_real_floating(call.result())) return;
  const Rows rows = rows_of(call, call.required_view("self"), dims_argument(call));
  reduce_rows(call, call.result(), rows,
              [&](const Buffer& row, double) { return row_product(row, call.arithmetic()); });
}

void cumulative_product(OpCall& call) {
  const Rows rows = rows_of(call, call.required_view("self"), dims_argument(call));
  map_rows(call, call.result(), rows, [&](const Buffer& row, const Buffer& out, double* errors) {
    for (std::int64_t k = 0; k < row.size; ++k)
      errors[k] = stored_error(
          row_product({row.values, row.cells, k + 1, row.step}, call.arithmetic()), out.value(k));
  });
}

// ---- extrema

// The largest of values with errors; whoever may be it is compared with the winner.
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

void extreme(OpCall& call, std::size_t result, double sign) {
  const Rows rows = rows_of(call, call.required_view("self"), dims_argument(call));
  if (!any_cells(rows) || rows.length == 0) {
    if (is_real_floating(call.result(result))) call.write(call.result(result), nullptr);
    return;
  }
  if (!is_real_floating(call.result(result))) {  // argmax, argmin
    for (std::int64_t i = 0; i < rows.count; ++i) {
      call.at_element(i, call.result(result).sizes());
      extremum(call, rows.row(i), sign);
    }
    return;
  }
  reduce_rows(call, call.result(result), rows,
              [&](const Buffer& row, double) { return extremum(call, row, sign); });
}

void largest(OpCall& call) {
  if (call.view("other")) return;  // max(a, b) is maximum
  extreme(call, 0, 1);
}
void smallest(OpCall& call) {
  if (call.view("other")) return;
  extreme(call, 0, -1);
}
void both_extremes(OpCall& call) {
  extreme(call, 0, -1);
  extreme(call, 1, 1);
}

// median, kthvalue, mode: an element of the row; its neighbours in order are compared with it.
void selected(OpCall& call) {
  const at::Tensor& result = call.result();
  if (!is_real_floating(result)) return;
  std::vector<std::int64_t> dims = dims_argument(call);
  if (dims.empty() && call.traits().name == "kthvalue") dims = {-1};
  const Rows rows = rows_of(call, call.required_view("self"), dims);
  if (!any_cells(rows)) return call.write(result, nullptr);
  reduce_rows(call, result, rows, [&](const Buffer& row, double out) -> BoundedValue {
    double error = 0;
    BoundedValue chosen = {out, 0};
    std::int64_t at = -1;
    for (std::int64_t k = 0; k < row.size && at < 0; ++k)
      if (row.value(k) == out) at = k;
    if (at < 0) return {out, 0};  // NaN
    chosen.error = row.error(at);
    for (std::int64_t k = 0; k < row.size; ++k) {
      if (k == at) continue;
      call.branch(chosen, row.number(k));
      if (std::fabs(row.value(k) - out) <= row.error(k) + chosen.error)
        error = std::max(error, std::fabs(row.value(k) - out) + row.error(k));
    }
    return BoundedValue{out, std::max(error, chosen.error)};
  });
}

void running_extremum(OpCall& call, double sign) {
  const Rows rows = rows_of(call, call.required_view("self"), dims_argument(call));
  map_rows(call, call.result(), rows, [&](const Buffer& row, const Buffer& out, double* errors) {
    for (std::int64_t k = 0; k < row.size; ++k)
      errors[k] = stored_error(extremum(call, {row.values, row.cells, k + 1, row.step}, sign),
                               out.value(k));
  });
}
void running_maximum(OpCall& call) { running_extremum(call, 1); }
void running_minimum(OpCall& call) { running_extremum(call, -1); }

// ---- exponentials: softmax and its kind

// What the errors of the row do to log(exp x_i / sum exp x): d = e_i (1 - y_i) + sum over j != i of
// y_j e_j to first order, and the weights y themselves move by at most exp(2 max e).
struct SoftmaxRow {
  std::vector<double> weights;
  double weighted_error = 0;  // sum of y_j e_j
  double largest_error = 0;
  double highest = -kInfinity;
  double spread_rounding =
      0;  // sum of y_j times the rounding of x_j - max, which exp turns into a relative error
  double log_sum = 0;
};

SoftmaxRow softmax_row(const Buffer& row, const Arithmetic& arithmetic) {
  SoftmaxRow s;
  for (std::int64_t k = 0; k < row.size; ++k) s.highest = std::max(s.highest, row.value(k));
  double total = 0;
  s.weights.resize(row.size);
  for (std::int64_t k = 0; k < row.size; ++k)
    total += s.weights[k] = std::exp(row.value(k) - s.highest);
  s.log_sum = std::log(total);
  for (std::int64_t k = 0; k < row.size; ++k) {
    const double y = s.weights[k] /= total;
    s.weighted_error += y == 0 ? 0 : y * row.error(k);
    s.largest_error = std::max(s.largest_error, row.error(k));
    if (y != 0) s.spread_rounding += y * arithmetic.inner_rounding(s.highest - row.value(k));
  }
  return s;
}

double log_weight_error(const SoftmaxRow& s, const Buffer& row, std::int64_t k) {
  const double first_order =
      row.error(k) * (1 - s.weights[k]) + (s.weighted_error - s.weights[k] * row.error(k));
  return s.largest_error == 0 ? 0 : std::fabs(first_order) * std::exp(2 * s.largest_error);
}

void softmax(OpCall& call) {
  const Arithmetic& arithmetic = call.arithmetic();
  const Rows rows = rows_of(call, call.required_view("self"), dims_argument(call));
  map_rows(call, call.result(), rows, [&](const Buffer& row, const Buffer& out, double* errors) {
    if (row.size == 1) {  // exp(0) / 1
      errors[0] = row.error(0) < kInfinity ? 0 : kInfinity;
      return;
    }
    const SoftmaxRow s = softmax_row(row, arithmetic);
    // exp of both, the sum, the quotient (or a product with a rounded reciprocal).
    double shared = s.spread_rounding + arithmetic.inner_gamma(static_cast<double>(row.size - 1)) +
                    arithmetic.inner_gamma(2 * kExpUlps) * 2 + arithmetic.inner_gamma(2);
    // Along other dims than the last, 16-bit kernels keep the exponentials in the result, and sum
    // and scale those.
    if (arithmetic.narrows()) shared += arithmetic.stored_gamma(3);
    for (std::int64_t k = 0; k < row.size; ++k) {
      const double relative =
          std::expm1(log_weight_error(s, row, k) + shared +
                     arithmetic.inner_rounding(std::fabs(s.highest - row.value(k))));
      const double smallest =
          arithmetic.inner.smallest + (arithmetic.narrows() ? arithmetic.stored.smallest : 0);
      const double error = std::isfinite(out.value(k)) ? out.value(k) * relative + smallest : 0;
      // exp(-inf) is 0 on both sides.
      errors[k] = stored_error(
          {out.value(k), row.error(k) == 0 && std::isinf(row.value(k)) ? 0 : error}, out.value(k));
    }
  });
}

void log_softmax(OpCall& call) {
  const Arithmetic& arithmetic = call.arithmetic();
  const Rows rows = rows_of(call, call.required_view("self"), dims_argument(call));
  map_rows(call, call.result(), rows, [&](const Buffer& row, const Buffer& out, double* errors) {
    if (row.size == 1) {
      errors[0] = row.error(0) < kInfinity ? 0 : kInfinity;
      return;
    }
    const SoftmaxRow s = softmax_row(row, arithmetic);
    const double shared =
        s.spread_rounding + arithmetic.inner_gamma(static_cast<double>(row.size - 1)) +
        arithmetic.inner_gamma(2 * kExpUlps) + arithmetic.inner_rounding(s.log_sum, 1) +
        // max + log(sum) first, or x - max first: either order
        arithmetic.inner_rounding(std::fabs(s.highest) + s.log_sum) +
        // 16-bit kernels keep the sum and its logarithm in their type
        (arithmetic.narrows() ? arithmetic.stored_gamma(1) + arithmetic.stored_rounding(s.log_sum)
                              : 0);
    for (std::int64_t k = 0; k < row.size; ++k) {
      const double error = log_weight_error(s, row, k) + shared +
                           arithmetic.stored_rounding(std::fabs(s.highest - row.value(k))) +
                           arithmetic.inner_rounding(std::fabs(out.value(k)));
      errors[k] =
          stored_error({out.value(k), std::isfinite(out.value(k)) ? error : 0}, out.value(k));
    }
  });
}

void logsumexp(OpCall& call) {
  const Arithmetic& arithmetic = call.arithmetic();
  const Rows rows = rows_of(call, call.required_view("self"), dims_argument(call));
  reduce_rows(call, call.result(), rows, [&](const Buffer& row, double out) -> BoundedValue {
    if (!std::isfinite(out)) return {out, any_cells(rows) ? kInfinity : 0};
    if (row.size == 1) return {out, row.error(0)};  // log(exp(0)) + x
    const SoftmaxRow s = softmax_row(row, arithmetic);
    const double propagated =
        s.largest_error == 0 ? 0 : s.weighted_error * std::exp(2 * s.largest_error);
    // Composed of operators that each store their result: the differences, exp, the sum, log.
    double spread = 0;
    for (std::int64_t k = 0; k < row.size; ++k)
      if (s.weights[k] != 0)
        spread += s.weights[k] * arithmetic.stored_rounding(s.highest - row.value(k));
    const double sums = arithmetic.stored_gamma(arithmetic.narrows() ? 2 : 0) +
                        arithmetic.inner_gamma(row.size - 1.0) +
                        arithmetic.inner_gamma(2 * kExpUlps);
    double log_rounding = arithmetic.inner_rounding(s.log_sum, 1);
    if (arithmetic.narrows()) log_rounding += arithmetic.stored_rounding(s.log_sum);
    return {out, propagated + spread + s.spread_rounding + sums + log_rounding +
                     arithmetic.inner_rounding(std::fabs(s.highest) + s.log_sum)};
  });
}

void log_cumulative_sum_exp(OpCall& call) {
  const Arithmetic& arithmetic = call.arithmetic();
  const Rows rows = rows_of(call, call.required_view("self"), dims_argument(call));
  map_rows(call, call.result(), rows, [&](const Buffer& row, const Buffer& out, double* errors) {
    double propagated = 0, magnitude = 0;
    for (std::int64_t k = 0; k < row.size; ++k) {
      propagated = std::max(propagated, row.error(k));  // slopes are at most 1, their sum too
      magnitude = std::max(magnitude, std::fabs(row.value(k)));
      // Each step: a difference, exp, log1p, a sum.
      const double step = arithmetic.stored_gamma(4) * (magnitude + std::log(k + 1.0)) +
                          arithmetic.inner_gamma(2 * kExpUlps);
      errors[k] = k == 0 ? row.error(0) : propagated + static_cast<double>(k) * step;
      if (!std::isfinite(out.value(k))) errors[k] = propagated == 0 ? 0 : kInfinity;
    }
  });
}

// grad_x = y (g - sum g y), log version: g - exp(y) sum g.
void softmax_backward(OpCall& call) {
  const bool log = call.traits().name == "_log_softmax_backward_data";
  const Arithmetic& arithmetic = call.arithmetic();
  const std::vector<std::int64_t> dims = dims_argument(call);
  const Rows gradients = rows_of(call, call.required_view("grad_output"), dims);
  const Rows outputs = rows_of(call, call.required_view("output"), dims);
  Arithmetic each_step = arithmetic;
  each_step.inner = each_step.stored;
  std::int64_t r = 0;
  map_rows(call, call.result(), gradients, [&](const Buffer& g, const Buffer& out, double* errors) {
    const InArithmetic rounding_each_step(each_step);
    const Buffer y = outputs.row(r++);
    double* terms = call.arena().doubles(g.size);
    Cell* cells = call.arena().cells(g.size);
    BoundedValue total;
    for (std::int64_t k = 0; k < g.size; ++k) {
      const BoundedValue term = log ? g.number(k) : g.number(k) * y.number(k);
      terms[k] = term.value;
      if (!term.exact()) cells[k] = inexact_cell(term.value, term.error);
      total.value += term.value;
    }
    bool exact = false;
    total.error = sum_error({terms, cells, g.size, 1}, arithmetic, &exact);
    for (std::int64_t k = 0; k < g.size; ++k) {
      // y g - y sum, or y (g - sum): the worse of the two roundings is that of the terms.
      const BoundedValue weight =
          log ? monotone([](double v) { return std::exp(v); }, y.number(k), kExpUlps) : y.number(k);
      BoundedValue result = log ? g.number(k) - weight * total : weight * (g.number(k) - total);
      if (!result.exact() && !log)
        result.error += each_step.inner_rounding(std::fabs(weight.value * g.value(k)) +
                                                 std::fabs(weight.value * total.value));
      errors[k] = stored_error(result, out.value(k));
    }
  });
}

// ---- moments

struct Moments {
  BoundedValue mean;
  BoundedValue deviation;  // sum of squared deviations from the mean
};

// Any of the usual algorithms (two passes, updating, pairwise): relative error n u kappa, kappa^2 =
// sum x^2 / sum (x-mean)^2 (Chan, Golub and LeVeque 1983, table 1; n u + (n u kappa)^2 for two
// passes).
Moments moments_of(const Buffer& row, const Arithmetic& arithmetic) {
  const auto n = static_cast<double>(row.size);
  Moments m;
  double squares = 0, total = 0, absolute = 0, errors = 0;
  bool constant_row = true;
  for (std::int64_t k = 0; k < row.size; ++k) {
    total += row.value(k);
    absolute += std::fabs(row.value(k)) + row.error(k);
    errors += row.error(k);
    squares += (std::fabs(row.value(k)) + row.error(k)) * (std::fabs(row.value(k)) + row.error(k));
    constant_row = constant_row && row.value(k) == row.value(0);
  }
  constant_row = constant_row && errors == 0;
  const double mean = total / n;
  m.mean = {constant_row ? row.value(0) : mean, errors / n};
  if (!constant_row)
    m.mean.error += (arithmetic.inner_gamma(n) + arithmetic.inner_gamma(1)) * absolute / n;
  double deviation = 0, propagated = 0;
  for (std::int64_t k = 0; k < row.size; ++k) {
    const double d = row.value(k) - mean;
    deviation += d * d;
    const double e = row.error(k) + errors / n;
    propagated += 2 * std::fabs(d) * e + e * e;
  }
  m.deviation = {constant_row ? 0 : deviation, propagated};
  if (!constant_row) {
    const double kappa_term = std::sqrt((deviation + propagated) * squares);
    const double gamma = arithmetic.inner_gamma(n + 2);
    m.deviation.error += gamma * kappa_term + gamma * gamma * squares;
  }
  return m;
}

BoundedValue row_variance(const Buffer& row, double correction, const Arithmetic& arithmetic) {
  const double freedom = static_cast<double>(row.size) - correction;
  if (row.size == 0) return {std::numeric_limits<double>::quiet_NaN(), 0};
  return moments_of(row, arithmetic).deviation / constant(std::max(0.0, freedom));
}

double correction_of(const OpCall& call) {
  if (call.index_of("correction") >= 0) return call.number("correction").value_or(1);
  return call.boolean("unbiased", true) ? 1 : 0;
}

// Square root of a variance: never negative in the run, however near to zero.
BoundedValue root_of_variance(BoundedValue variance) {
  if (variance.exact()) return square_root(variance);
  const double root = std::sqrt(variance.value);
  const double up = std::sqrt(variance.value + variance.error) - root;
  const double down = root - std::sqrt(std::max(0.0, variance.value - variance.error));
  return computed(root, std::max(up, down), 1);
}

void variance(OpCall& call) {
  const Rows rows = rows_of(call, call.required_view("self"), dims_argument(call));
  const double correction = correction_of(call);
  const bool root = call.traits().name.starts_with("std");
  reduce_rows(call, call.result(), rows, [&](const Buffer& row, double out) -> BoundedValue {
    if (!std::isfinite(out)) return {out, any_cells(rows) && row.size > correction ? kInfinity : 0};
    const BoundedValue v = row_variance(row, correction, call.arithmetic());
    return root ? root_of_variance(v) : v;
  });
  if (call.results().size() < 2) return;
  reduce_rows(call, call.result(1), rows,
              [&](const Buffer& row, double) { return moments_of(row, call.arithmetic()).mean; });
}

// p-norms: |x|^p, a sum of terms of one sign, a root.
void vector_norm(OpCall& call) {
  const Arithmetic& arithmetic = call.arithmetic();
  const Rows rows = rows_of(call, call.required_view("self"), dims_argument(call));
  const std::optional<double> order =
      call.index_of("ord") >= 0 ? call.number("ord") : call.number("p");
  const double p = order.value_or(2);
  reduce_rows(call, call.result(), rows, [&](const Buffer& row, double out) -> BoundedValue {
    double* absolute = call.arena().doubles(row.size);
    for (std::int64_t k = 0; k < row.size; ++k) absolute[k] = std::fabs(row.value(k));
    Buffer sizes = row;
    sizes.values = absolute;
    sizes.step = 1;
    if (row.step == 0 && row.cells != nullptr) {
      Cell* cells = call.arena().cells(row.size);
      std::fill(cells, cells + row.size, row.cell(0));
      sizes.cells = cells;
    }
    if (row.size == 0) return {out, 0};
    if (std::isinf(p)) return extremum(call, sizes, p > 0 ? 1 : -1);
    if (p == 0) {
      for (std::int64_t k = 0; k < row.size; ++k) call.branch(row.number(k), {0, 0});
      return {out, 0};
    }
    if (!std::isfinite(out)) return {out, row.cells ? kInfinity : 0};
    if (row.size == 1) {
      if (p != 1 && out == 0) call.branch(row.number(0), {0, 0});
      return row.error(0) == 0 && (p == 1 || p == 2)
                 ? square_root(BoundedValue{out, 0} * BoundedValue{out, 0})
                 : computed(out, row.error(0), 4);
    }
    double* terms = call.arena().doubles(row.size);
    Cell* cells = call.arena().cells(row.size);
    double total = 0, first_order = 0, error_norm = 0;
    for (std::int64_t k = 0; k < row.size; ++k) {
      const BoundedValue x = {absolute[k], row.error(k)};
      BoundedValue term = p == 1 ? x : p == 2 ? x * x : computed(std::pow(x.value, p), 0, 4);
      if (p != 1 && p != 2 && !x.exact())
        term.error +=
            std::max(std::fabs(std::pow(x.value + x.error, p) - term.value),
                     std::fabs(std::pow(std::max(0.0, x.value - x.error), p) - term.value));
      if (p == 1) call.branch(row.number(k), {0, 0});
      terms[k] = term.value;
      if (!term.exact()) cells[k] = inexact_cell(term.value, term.error);
      total += term.value;
      first_order += x.value * x.error;
      error_norm += x.error * x.error;
    }
    bool exact = false;
    const double error = sum_error({terms, cells, row.size, 1}, arithmetic, &exact);
    if (p == 1) return {total, error};
    if (p == 2) {
      if (exact) {
        const BoundedValue root = square_root(constant(total));
        if (root.exact()) return root;
      }
      // The norm moves by at most the norm of the errors, however small it is itself.
      error_norm = std::sqrt(error_norm);
      if (out <= error_norm) call.branch({out, error_norm}, {0, 0});
      const double rounding =
          arithmetic.inner_gamma(static_cast<double>(row.size) / 2 + 1) * (out + error_norm);
      return computed(
          out,
          std::min(error_norm,
                   out > 0 ? first_order / out + error_norm * error_norm / out : error_norm) +
              rounding,
          1);
    }
    const double up = std::pow(total + error, 1 / p),
                 down = std::pow(std::max(0.0, total - error), 1 / p);
    if (out != 0 && total - error <= 0) call.branch({total, error}, {0, 0});
    return computed(out, std::max(std::fabs(up - out), std::fabs(out - down)), 4);
  });
}

// ---- scatter_reduce: the elements of src that fall on one place are a row

void scattered_reduction(OpCall& call) {
  const at::Tensor& result = call.result();
  const at::Tensor* index = call.tensor("index");
  const std::string how = call.argument("reduce")->toStringRef();
  const std::int64_t given_dim = call.integer("dim", 0);
  const std::int64_t dim = given_dim < 0 ? given_dim + result.dim() : given_dim;
  const View source_view = call.required_view("src");
  const Buffer self = call.read(call.required_view("self"), result.sizes()),
               indices = call.read(call.required_view("index"));
  View used = source_view;  // src may be larger than index
  used.sizes.assign(index->sizes().begin(), index->sizes().end());
  const Buffer source = call.read(used, used.sizes);
  const at::Tensor out_tensor = result.contiguous();
  std::vector<std::vector<BoundedValue>> rows(static_cast<std::size_t>(result.numel()));
  if (call.boolean("include_self", true))
    for (std::int64_t i = 0; i < self.size; ++i) rows[i].push_back(self.number(i));
  for (std::int64_t i = 0; i < indices.size; ++i) {
    std::int64_t rest = i, place = 0, stride = 1;
    for (std::int64_t d = result.dim(); d-- > 0;) {
      const std::int64_t at = rest % index->size(d);
      rest /= index->size(d);
      place += (d == dim ? static_cast<std::int64_t>(indices.value(i)) : at) * stride;
      stride *= result.size(d);
    }
    rows[place].push_back(source.number(i));
  }
  const Buffer out = call.read(call.context().shadows.view_of(result), result.sizes());
  double* errors = call.arena().doubles(out.size);
  const InArithmetic in(call.arithmetic());
  for (std::int64_t i = 0; i < out.size; ++i) {
    call.at_element(i, result.sizes());
    const std::vector<BoundedValue>& row = rows[i];
    const auto n = static_cast<std::int64_t>(row.size());
    if (n == 0) {
      errors[i] = self.error(i);
      continue;
    }
    std::vector<double> values;
    std::vector<Cell> cells;
    double total = 0, magnitude = 0;
    for (const BoundedValue& x : row) {
      values.push_back(x.value);
      cells.push_back(x.exact() ? Cell() : inexact_cell(x.value, x.error));
      total += x.value;
      magnitude += std::fabs(x.value) + x.error;
    }
    const Buffer buffer = {values.data(), cells.data(), n, 1};
    BoundedValue y;
    if (how == "amax" || how == "amin") {
      y = extremum(call, buffer, how == "amax" ? 1 : -1);
    } else if (how == "prod") {
      y = row_product(buffer, call.arithmetic());
    } else {
      bool exact = false;
      y = {total, sum_error(buffer, call.arithmetic(), &exact)};
      if (!exact && call.arithmetic().narrows())
        y.error += call.arithmetic().stored_gamma(n - 1.0) * magnitude;
      if (how == "mean") y = over_count(y, static_cast<double>(n), call.arithmetic());
    }
    errors[i] = stored_error(y, out.value(i));
  }
  call.write_errors(result, out, errors);
}

// ---- distances between rows

BoundedValue power_of_distance(BoundedValue d, double p) {
  const BoundedValue size = {std::fabs(d.value), d.error};
  if (p == 1) return size;
  if (p == 2) return size * size;
  BoundedValue y = computed(std::pow(size.value, p), 0, 4);
  if (!size.exact())
    y.error += std::max(std::fabs(std::pow(size.value + size.error, p) - y.value),
                        std::fabs(std::pow(std::max(0.0, size.value - size.error), p) - y.value));
  return y;
}

template <typename F>
void for_each_pair(OpCall& call, const F& f) {
  const View a = call.required_view("x1"), b = call.required_view("x2");
  const std::int64_t rows_a = a.sizes[a.sizes.size() - 2], rows_b = b.sizes[b.sizes.size() - 2],
                     columns = a.sizes.back();
  if (columns == 0 || rows_a == 0 || rows_b == 0) return;
  const Buffer x = call.read(a), y = call.read(b);
  const std::int64_t batches = x.size / (rows_a * columns);
  for (std::int64_t n = 0; n < batches; ++n)
    for (std::int64_t i = 0; i < rows_a; ++i)
      for (std::int64_t j = 0; j < rows_b; ++j)
        f((n * rows_a + i) * rows_b + j, x.row((n * rows_a + i) * columns, columns),
          y.row((n * rows_b + j) * columns, columns));
}

void pairwise_distances(OpCall& call) {
  const double p = call.number("p").value_or(2);
  const View a = call.required_view("x1"), b = call.required_view("x2");
  if (std::isinf(p) || p == 0 ||
      !std::equal(a.sizes.begin(), a.sizes.end() - 2, b.sizes.begin(), b.sizes.end() - 2))
    return estimate_by_perturbation(call);
  const Buffer out = call.read(call.result());
  double* errors = call.arena().doubles(out.size);
  std::fill(errors, errors + out.size, 0.0);
  const InArithmetic in(call.arithmetic());
  for_each_pair(call, [&](std::int64_t at, const Buffer& x, const Buffer& y) {
    call.at_element(at, call.result().sizes());
    double value = 0, magnitude = 0, propagated = 0;
    for (std::int64_t k = 0; k < x.size; ++k) {
      const BoundedValue d = x.number(k) - y.number(k);
      const BoundedValue term = power_of_distance(d, p);
      if (p == 1) call.branch(d, {0, 0});
      value += term.value;
      propagated += term.error;
      magnitude += term.value + term.error;
    }
    if (magnitude == 0) return;
    BoundedValue total = {
        value,
        propagated + call.arithmetic().inner_gamma(static_cast<double>(x.size - 1)) * magnitude};
    if (value <= total.error) call.branch(total, {0, 0});
    const double root = std::pow(value, 1 / p);
    const double up = std::pow(value + total.error, 1 / p) - root;
    const double down = root - std::pow(std::max(0.0, value - total.error), 1 / p);
    errors[at] =
        stored_error(p == 1 ? total : computed(root, std::max(up, down), 4), out.value(at));
  });
  call.write_errors(call.result(), out, errors);
}

// Row i of the result: the sum over j of g_ij |d|^(p-1) sign(d) / distance_ij^(p-1).
void pairwise_distances_backward(OpCall& call) {
  const double p = call.number("p").value_or(2);
  const View a = call.required_view("x1");
  const std::int64_t columns = a.sizes.back();
  const Buffer g = call.read(
                   call.required_view(call.index_of("grad") < 0 ? "grad_output" : "grad")),
               distance = call.read(call.required_view("cdist"));
  const std::int64_t rows_b =
      call.required_view("x2").sizes[call.required_view("x2").sizes.size() - 2];
  if (std::isinf(p) || p == 0 || g.size != distance.size) return estimate_by_perturbation(call);
  const Buffer out = call.read(call.result());
  double* errors = call.arena().doubles(out.size);
  double* magnitudes = call.arena().doubles(out.size);
  std::fill(errors, errors + out.size, 0.0);
  std::fill(magnitudes, magnitudes + out.size, 0.0);
  const InArithmetic in(call.arithmetic());
  for_each_pair(call, [&](std::int64_t at, const Buffer& x, const Buffer& y) {
    for (std::int64_t k = 0; k < columns; ++k) {
      const BoundedValue d = x.number(k) - y.number(k);
      BoundedValue term;
      if (p == 1) {
        term = d.value == 0 ? BoundedValue{} : g.number(at) * constant(d.value > 0 ? 1 : -1);
      } else if (distance.value(at) != 0) {
        const BoundedValue unit =
            p == 2 ? constant(1)
                   : power_of_distance(d, p - 2) / power_of_distance(distance.number(at), p - 2);
        term = g.number(at) * d * unit / distance.number(at);
        if (p != 2 && !term.exact()) term.error *= 2;  // the kernel's own order of the same factors
      }
      const std::int64_t target = at / rows_b * columns + k;
      errors[target] += term.error;
      magnitudes[target] += std::fabs(term.value) + term.error;
    }
  });
  for (std::int64_t i = 0; i < out.size; ++i) {
    if (magnitudes[i] == 0) continue;
    errors[i] += call.arithmetic().inner_gamma(static_cast<double>(rows_b)) * magnitudes[i];
    errors[i] = stored_error({out.value(i), errors[i]}, out.value(i));
  }
  call.write_errors(call.result(), out, errors);
}

// ---- normalisations

struct Normalized {
  Moments moments;
  BoundedValue inverse;  // 1 / sqrt(variance + eps)
};

Normalized normalize(const Buffer& row, BoundedValue eps, const Arithmetic& arithmetic) {
  Normalized n;
  n.moments = moments_of(row, arithmetic);
  const BoundedValue variance = n.moments.deviation / constant(static_cast<double>(row.size));
  const BoundedValue shifted = variance + eps;
  if (!(shifted.value - shifted.error > 0)) {
    n.inverse = {1 / std::sqrt(shifted.value), shifted.exact() ? 0 : kInfinity};
    // The variance is not negative in the run, and eps keeps it away from zero.
    if (eps.value > 0 && !shifted.exact())
      n.inverse.error = std::max(1 / std::sqrt(eps.value - eps.error) - n.inverse.value,
                                 n.inverse.value - 1 / std::sqrt(shifted.value + shifted.error));
    return n;
  }
  n.inverse = constant(1) / square_root(shifted);
  if (!n.inverse.exact())
    n.inverse.error += arithmetic.inner_rounding(n.inverse.value + n.inverse.error);
  return n;
}

Buffer read_or_none(OpCall& call, std::string_view name, c10::IntArrayRef sizes) {
  if (call.tensor(name) == nullptr) return {};
  return call.read(call.required_view(name), sizes);
}

// What layer_norm and group_norm share: rows that are normalised, and the weight of element k of
// row r.
struct Normalization {
  Rows rows;
  std::int64_t channels = 0;  // elements of weight and bias
  std::int64_t groups = 1;    // row r belongs to group r % groups
  std::int64_t pixels = 1;    // consecutive elements of a row with one weight
  Dims weight_sizes;

  std::int64_t channel(std::int64_t row, std::int64_t k) const {
    return row % groups * (rows.length / pixels) + k / pixels;
  }
};

Normalization normalization_of(OpCall& call) {
  const View input = call.required_view("input");
  Normalization n;
  if (call.index_of("group") < 0) {
    const std::vector<std::int64_t> shape = call.integers("normalized_shape");
    std::vector<std::int64_t> dims(shape.size());
    std::iota(dims.begin(), dims.end(),
              static_cast<std::int64_t>(input.sizes.size() - shape.size()));
    n.rows = rows_of(call, input, dims);
    n.weight_sizes.assign(shape.begin(), shape.end());
    n.channels = n.rows.length;
    return n;
  }
  n.groups = call.integer("group", 1);
  n.channels = call.integer("C", 1);
  n.pixels = call.integer("HxW", 1);
  n.weight_sizes = {n.channels};
  n.rows.all = call.read(input);
  n.rows.count = call.integer("N", 1) * n.groups;
  n.rows.length = n.rows.count == 0 ? 0 : n.rows.all.size / n.rows.count;
  for (std::size_t d = 0; d < input.sizes.size(); ++d)
    n.rows.order.push_back(static_cast<std::int64_t>(d));
  return n;
}

// y = (x - mean) * rstd * weight + bias.
void normalization(OpCall& call) {
  const Arithmetic& arithmetic = call.arithmetic();
  const Normalization shape = normalization_of(call);
  const Buffer weight = read_or_none(call, "weight", shape.weight_sizes);
  const Buffer bias = read_or_none(call, "bias", shape.weight_sizes);
  const InArithmetic outer(arithmetic);
  const BoundedValue eps = rounded_constant(call.number("eps").value_or(1e-5));
  std::vector<Normalized> all;
  map_rows(
      call, call.result(), shape.rows, [&](const Buffer& row, const Buffer& out, double* errors) {
        const auto r = static_cast<std::int64_t>(all.size());
        const Normalized& n = all.emplace_back(normalize(row, eps, arithmetic));
        for (std::int64_t k = 0; k < row.size; ++k) {
          const BoundedValue centred = row.number(k) - n.moments.mean;
          BoundedValue y = centred * n.inverse;
          const BoundedValue w = weight.size ? weight.number(shape.channel(r, k)) : constant(1);
          if (weight.size) y = y * w;
          // Kernels also compute x * (rstd * weight) + (bias - mean * rstd * weight): roundings of
          // each part.
          y.error += arithmetic.inner_gamma(3) *
                     (std::fabs(row.value(k)) + std::fabs(n.moments.mean.value)) *
                     (n.inverse.value + n.inverse.error) * (std::fabs(w.value) + w.error);
          if (bias.size) {
            const BoundedValue b = bias.number(shape.channel(r, k));
            y = y + b;
            if (row.value(k) != 0 || n.moments.mean.value != 0)
              y.error += arithmetic.inner_rounding(std::fabs(b.value));
          }
          errors[k] = stored_error(y, out.value(k));
        }
      });
  if (call.results().size() < 3 || call.result(1).numel() != shape.rows.count) return;
  double* means = call.arena().doubles(shape.rows.count);
  double* inverses = call.arena().doubles(shape.rows.count);
  const Buffer mean_out = call.read(call.result(1)), inverse_out = call.read(call.result(2));
  for (std::int64_t i = 0; i < shape.rows.count && shape.rows.length > 0; ++i) {
    means[i] = stored_error(all[i].moments.mean, mean_out.value(i));
    inverses[i] = stored_error(all[i].inverse, inverse_out.value(i));
  }
  call.write_errors(call.result(1), mean_out, means);
  call.write_errors(call.result(2), inverse_out, inverses);
}

// A sum of Numbers in any order, in the kernel's inner arithmetic.
template <typename F>
BoundedValue total_of(OpCall& call, std::int64_t count, const F& term_at) {
  double* values = call.arena().doubles(count);
  Cell* cells = call.arena().cells(count);
  BoundedValue total;
  for (std::int64_t k = 0; k < count; ++k) {
    const BoundedValue term = term_at(k);
    values[k] = term.value;
    if (!term.exact()) cells[k] = inexact_cell(term.value, term.error);
    total.value += term.value;
  }
  bool exact = false;
  total.error = sum_error({values, cells, count, 1}, call.arithmetic(), &exact);
  return total;
}

// dx = rstd (g w - mean(g w) - xhat mean(g w xhat)); dw = sum g xhat; db = sum g.
void normalization_backward(OpCall& call) {
  const Arithmetic& arithmetic = call.arithmetic();
  const Normalization shape = normalization_of(call);
  const Rows& x = shape.rows;
  const Buffer g = [&] {
    const View gradient = permuted(call.required_view("grad_out"), x.order);
    return call.read(gradient, gradient.sizes);
  }();
  const Buffer weight = read_or_none(call, "weight", shape.weight_sizes);
  const Buffer mean = call.read(call.required_view("mean")),
               inverse = call.read(call.required_view("rstd"));
  const InArithmetic in(arithmetic);
  const auto n = static_cast<double>(x.length);
  std::vector<BoundedValue> hats(static_cast<std::size_t>(x.count * x.length));
  for (std::int64_t r = 0; r < x.count; ++r)
    for (std::int64_t k = 0; k < x.length; ++k) {
      BoundedValue hat = (x.row(r).number(k) - mean.number(r)) * inverse.number(r);
      hat.error += arithmetic.inner_rounding(
          (std::fabs(x.row(r).value(k)) + std::fabs(mean.value(r))) * inverse.value(r));
      hats[r * x.length + k] = hat;
    }
  if (is_real_floating(call.result(0))) {
    std::int64_t r = 0;
    map_rows(call, call.result(0), x, [&](const Buffer&, const Buffer& out, double* errors) {
      const auto weighted = [&](std::int64_t k) {
        const BoundedValue gradient = g.number(r * x.length + k);
        return weight.size ? gradient * weight.number(shape.channel(r, k)) : gradient;
      };
      const BoundedValue* hat = hats.data() + r * x.length;
      const BoundedValue sum_g = total_of(call, x.length, weighted);
      const BoundedValue sum_gx =
          total_of(call, x.length, [&](std::int64_t k) { return weighted(k) * hat[k]; });
      // Kernels also sum g w x and subtract mean * sum g w from it.
      double rearranged = 0;
      for (std::int64_t k = 0; k < x.length; ++k)
        rearranged += std::fabs(weighted(k).value) *
                      (std::fabs(x.row(r).value(k)) + std::fabs(mean.value(r)));
      rearranged *=
          arithmetic.inner_gamma(n + 3) * (std::fabs(inverse.value(r)) + inverse.error(r)) / n;
      for (std::int64_t k = 0; k < x.length; ++k) {
        const BoundedValue a = weighted(k), b = sum_g / constant(n),
                           c = hat[k] * sum_gx / constant(n);
        BoundedValue dx = (a - b - c) * inverse.number(r);
        const double scale = std::fabs(inverse.value(r)) + inverse.error(r);
        dx.error +=
            scale * (arithmetic.inner_gamma(4) *
                         (std::fabs(a.value) + std::fabs(b.value) + std::fabs(c.value)) +
                     rearranged * (std::fabs(hat[k].value) + std::fabs(mean.value(r)) * scale));
        errors[k] = stored_error(dx, out.value(k));
      }
      ++r;
    });
  }
  for (const std::size_t which : {1U, 2U}) {
    if (call.results().size() <= which || !is_real_floating(call.result(which))) continue;
    const Buffer out = call.read(call.result(which));
    double* errors = call.arena().doubles(out.size);
    std::vector<std::vector<std::int64_t>> elements(static_cast<std::size_t>(out.size));
    for (std::int64_t r = 0; r < x.count; ++r)
      for (std::int64_t k = 0; k < x.length; ++k)
        elements[shape.channel(r, k)].push_back(r * x.length + k);
    for (std::int64_t c = 0; c < out.size; ++c) {
      const std::vector<std::int64_t>& own = elements[c];
      BoundedValue total =
          total_of(call, static_cast<std::int64_t>(own.size()), [&](std::int64_t k) {
            const BoundedValue gradient = g.number(own[k]);
            return which == 1 ? gradient * hats[own[k]] : gradient;
          });
      if (which == 1) {  // or sum g x - mean sum g, scaled
        double rearranged = 0;
        for (const std::int64_t at : own) {
          const std::int64_t r = at / x.length;
          rearranged += std::fabs(g.value(at)) *
                        (std::fabs(x.all.value(at)) + std::fabs(mean.value(r))) *
                        std::fabs(inverse.value(r));
        }
        total.error += arithmetic.inner_gamma(static_cast<double>(own.size()) + 2) * rearranged;
      }
      errors[c] = stored_error(total, out.value(c));
    }
    call.write_errors(call.result(which), out, errors);
  }
}

// ---- negative log likelihood

void nll_loss(OpCall& call) {
  const Arithmetic& arithmetic = call.arithmetic();
  const at::Tensor& result = call.result();
  const at::Tensor* self = call.tensor("self");
  const Buffer scores = call.read(call.required_view("self"));
  const Buffer targets = call.read(call.required_view("target"));
  const auto ignored = static_cast<double>(call.integer("ignore_index", -100));
  const std::int64_t reduction = call.integer("reduction", 1);
  const std::int64_t classes = self->size(self->dim() - 1);
  const Buffer weight = read_or_none(call, "weight", {classes});
  const std::int64_t n = targets.size;
  const InArithmetic in(arithmetic);
  double* values = call.arena().doubles(n);
  double* weights = call.arena().doubles(n);
  Cell* cells = call.arena().cells(n);
  Cell* weight_cells = call.arena().cells(n);
  BoundedValue total, total_weight;
  for (std::int64_t i = 0; i < n; ++i) {
    const double target = targets.value(i);
    const auto chosen = static_cast<std::int64_t>(target);
    const bool counts = target != ignored;
    const BoundedValue w = !counts       ? BoundedValue{}
                           : weight.size ? weight.number(chosen)
                                         : constant(1);
    const BoundedValue loss = counts ? -(w * scores.number(i * classes + chosen)) : BoundedValue{};
    values[i] = loss.value;
    weights[i] = w.value;
    if (!loss.exact()) cells[i] = inexact_cell(loss.value, loss.error);
    if (!w.exact()) weight_cells[i] = inexact_cell(w.value, w.error);
    total.value += loss.value;
    total_weight.value += w.value;
  }
  const Buffer out = call.read(result);
  double* errors = call.arena().doubles(out.size);
  bool exact = false;
  if (reduction == 0) {
    for (std::int64_t i = 0; i < out.size; ++i)
      errors[i] = stored_error({values[i], cells[i].error}, out.value(i));
  } else {
    total.error = sum_error({values, cells, n, 1}, arithmetic, &exact);
    total_weight.error = sum_error({weights, weight_cells, n, 1}, arithmetic, &exact);
    // Some kernels keep the sums in the stored type.
    if (arithmetic.narrows()) {
      double magnitude = 0;
      for (std::int64_t i = 0; i < n; ++i) magnitude += std::fabs(values[i]) + cells[i].error;
      if (total.error != 0)
        total.error += arithmetic.stored_gamma(static_cast<double>(n)) * magnitude;
      if (total_weight.error != 0 || !fits(arithmetic.stored, total_weight.value))
        total_weight.error +=
            arithmetic.stored_gamma(static_cast<double>(n)) * std::fabs(total_weight.value);
    }
    errors[0] = stored_error(reduction == 1 ? total / total_weight : total, out.value(0));
  }
  call.write_errors(result, out, errors);
  if (call.results().size() < 2 || !is_real_floating(call.result(1)) || call.result(1).numel() != 1)
    return;
  double weight_error = stored_error(total_weight, call.read(call.result(1)).value(0));
  call.write_errors(call.result(1), call.read(call.result(1)), &weight_error);
}

void nll_loss_backward(OpCall& call) {
  const at::Tensor& result = call.result();
  const at::Tensor* self = call.tensor("self");
  const std::int64_t classes = self->size(self->dim() - 1);
  const std::int64_t reduction = call.integer("reduction", 1);
  const Buffer targets = call.read(call.required_view("target"));
  const Buffer gradient = call.read(call.required_view("grad_output"));
  const Buffer total_weight = call.read(call.required_view("total_weight"));
  const Buffer weight = read_or_none(call, "weight", {classes});
  const auto ignored = static_cast<double>(call.integer("ignore_index", -100));
  const Buffer out = call.read(result);
  Arithmetic each_step = call.arithmetic();
  each_step.inner = each_step.stored;
  const InArithmetic in(each_step);
  double* errors = call.arena().doubles(out.size);
  for (std::int64_t i = 0; i < targets.size; ++i)
    for (std::int64_t c = 0; c < classes; ++c) {
      const std::int64_t at = i * classes + c;
      errors[at] = 0;
      if (targets.value(i) == ignored || static_cast<double>(c) != targets.value(i)) continue;
      BoundedValue g = gradient.number(reduction == 0 ? i : 0);
      if (weight.size) g = g * weight.number(c);
      if (reduction == 1) g = g / total_weight.number(0);
      errors[at] = stored_error(-g, out.value(at));
    }
  call.write_errors(result, out, errors);
}

constexpr RuleRow kRules[] = {
    // operator, rule
    {"sum", sum},
    {"nansum", sum},
    {"mean", mean},
    {"trace", trace},
    {"cumsum", cumulative_sum},
    {"prod", product},
    {"cumprod", cumulative_product},
    {"amax", largest},
    {"amin", smallest},
    {"max", largest},
    {"min", smallest},
    {"argmax", largest},
    {"argmin", smallest},
    {"aminmax", both_extremes},
    {"median", selected},
    {"nanmedian", selected},
    {"kthvalue", selected},
    {"mode", selected},
    {"cummax", running_maximum},
    {"cummin", running_minimum},
    {"_softmax", softmax},
    {"_log_softmax", log_softmax},
    {"logsumexp", logsumexp},
    {"logcumsumexp", log_cumulative_sum_exp},
    {"_softmax_backward_data", softmax_backward},
    {"_log_softmax_backward_data", softmax_backward},
    {"var", variance},
    {"var_mean", variance},
    {"std", variance},
    {"std_mean", variance},
    {"linalg_vector_norm", vector_norm},
    {"norm", vector_norm},
    {"native_layer_norm", normalization},
    {"native_layer_norm_backward", normalization_backward},
    {"native_group_norm", normalization},
    {"native_group_norm_backward", normalization_backward},
    {"scatter_reduce", scattered_reduction},
    {"_cdist_forward", pairwise_distances},
    {"_cdist_backward", pairwise_distances_backward},
    {"nll_loss_forward", nll_loss},
    {"nll_loss_backward", nll_loss_backward},
};

}  // namespace

std::span<const RuleRow> reduction_rules() { return kRules; }

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

}  // namespace distgrad::tolerance
