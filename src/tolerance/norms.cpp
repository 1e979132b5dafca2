// Bounds p-norms of rows and distances between rows.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

#include "tolerance/rows.h"
#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

// Bounds p-norms: |x|^p, a sum of terms of one sign, a root.
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
  const BoundedView a = call.required_view("x1"), b = call.required_view("x2");
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
  const BoundedView a = call.required_view("x1"), b = call.required_view("x2");
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

// Bounds row i of the result: the sum over j of g_ij |d|^(p-1) sign(d) / distance_ij^(p-1).
void pairwise_distances_backward(OpCall& call) {
  const double p = call.number("p").value_or(2);
  const BoundedView a = call.required_view("x1");
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
        // The kernel has its own order of the same factors.
        if (p != 2 && !term.exact()) term.error *= 2;
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

constexpr RuleRow kNormRules[] = {
    // operator, rule
    {"linalg_vector_norm", vector_norm},
    {"norm", vector_norm},
    {"_cdist_forward", pairwise_distances},
    {"_cdist_backward", pairwise_distances_backward},
};

}  // namespace

std::span<const RuleRow> norm_rules() { return kNormRules; }

}  // namespace distgrad::tolerance
