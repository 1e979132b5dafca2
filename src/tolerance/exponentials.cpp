// Bounds softmax and similar operators.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

#include "tolerance/rows.h"
#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

// Holds what the errors of the row do to log(exp x_i / sum exp x): to first order d = e_i (1 - y_i)
// + sum over j != i of y_j e_j, and the weights y themselves move by at most exp(2 max e).
struct SoftmaxRow {
  std::vector<double> weights;
  double weighted_error = 0;  // sum of y_j e_j
  double largest_error = 0;
  double highest = -kInfinity;
  // Holds the sum of y_j times the rounding of x_j - max, which exp turns into a relative error.
  double spread_rounding = 0;
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
    // Bounds both exponentials, the sum, and the quotient (or a product with a rounded reciprocal).
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
        // either order: max + log(sum) first, or x - max first
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
    // It is composed of operators that each store their result: the differences, exp, the sum, log.
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
      propagated = std::max(propagated, row.error(k));  // slopes are at most 1, and so is their sum
      magnitude = std::max(magnitude, std::fabs(row.value(k)));
      // Each step takes a difference, exp, log1p and a sum.
      const double step = arithmetic.stored_gamma(4) * (magnitude + std::log(k + 1.0)) +
                          arithmetic.inner_gamma(2 * kExpUlps);
      errors[k] = k == 0 ? row.error(0) : propagated + static_cast<double>(k) * step;
      if (!std::isfinite(out.value(k))) errors[k] = propagated == 0 ? 0 : kInfinity;
    }
  });
}

// Bounds grad_x = y (g - sum g y) and its log version, g - exp(y) sum g.
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
      // Of y g - y sum and y (g - sum), the former rounds worse, by its terms.
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

constexpr RuleRow kExponentialRules[] = {
    // operator, rule
    {"_softmax", softmax},
    {"_log_softmax", log_softmax},
    {"logsumexp", logsumexp},
    {"logcumsumexp", log_cumulative_sum_exp},
    {"_softmax_backward_data", softmax_backward},
    {"_log_softmax_backward_data", softmax_backward},
};

}  // namespace

std::span<const RuleRow> exponential_rules() { return kExponentialRules; }

}  // namespace distgrad::tolerance
