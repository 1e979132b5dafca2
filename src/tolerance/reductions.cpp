// Bounds sums, products, extrema, and elements chosen from a row.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tolerance/rows.h"
#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

// The rows are the ranks' terms (or those of a stack): the run adds them in any order and rounds
// each addition, and the result is still a sum for what is added to it later.
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
        // As with a sum divided by a number, the terms may be divided instead.
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
  // The run rounds the sum to the stored type first, then divides, or multiplies by a rounded 1/n.
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
  const BoundedView view = call.required_view("self");
  BoundedView diagonal = view;
  diagonal.sizes = {std::min(view.sizes[0], view.sizes[1])};
  diagonal.strides = {view.strides[0] + view.strides[1]};
  const Rows rows = rows_of(call, diagonal, {});
  reduce_rows(call, call.result(), rows,
              [&](const Buffer& row, double out) { return row_sum(row, call.arithmetic(), out); });
}

// Bounds partial sums in any order; scans on a GPU round each to the stored type.
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

// Bounds factors in any order, as in a product over ranks.
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

// Bounds median, kthvalue and mode, which choose an element of the row. It is compared with the
// other elements.
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

void scattered_reduction(OpCall& call) {
  const at::Tensor& result = call.result();
  const at::Tensor* index = call.tensor("index");
  const std::string how = call.argument("reduce")->toStringRef();
  const std::int64_t given_dim = call.integer("dim", 0);
  const std::int64_t dim = given_dim < 0 ? given_dim + result.dim() : given_dim;
  const BoundedView source_view = call.required_view("src");
  const Buffer self = call.read(call.required_view("self"), result.sizes()),
               indices = call.read(call.required_view("index"));
  BoundedView used = source_view;  // src may be larger than index
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

constexpr RuleRow kReductionRules[] = {
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
    {"scatter_reduce", scattered_reduction},
};

}  // namespace

std::span<const RuleRow> reduction_rules() { return kReductionRules; }

}  // namespace distgrad::tolerance
