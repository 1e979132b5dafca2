// Bounds operators that look at the terms of sums and at the factors of products, which the run may
// take in another order.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

#include "tolerance/elements.h"
#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

double sign_of_alpha(const OpCall& call) {
  const std::optional<double> alpha = call.number("alpha");
  return alpha.value_or(1);
}

// Any addition in backward may be autograd's accumulation, whose order the engine decides.
void add_terms(OpCall& call, Buffer a, Buffer b) {
  const at::Tensor& result = call.result();
  const Arithmetic& arithmetic = call.arithmetic();
  Cell* cells = call.arena().cells(result.numel());
  bool any = false;
  for (std::int64_t i = 0; i < result.numel(); ++i) {
    const double x = a.value(i), y = b.value(i);
    if (!std::isfinite(x + y)) {
      if (a.error(i) + b.error(i) != 0) cells[i] = inexact_cell(x + y, kInfinity), any = true;
      continue;
    }
    cells[i] = finished(merged(expanded(a.cell(i), x), expanded(b.cell(i), y)), arithmetic);
    any |= !cells[i].plain();
  }
  call.write(result, any ? cells : nullptr);
}

void add_or_subtract(OpCall& call, std::string_view first, std::string_view second, double sign) {
  const at::Tensor& result = call.result();
  if (!is_real_floating(result)) return;
  const double alpha = sign * sign_of_alpha(call);
  const std::string_view names[] = {first, second};
  const Arguments arguments = read_arguments(call, names, result.sizes(), false);
  if (call.in_backward() && std::fabs(alpha) == 1) {
    add_terms(call, arguments.buffers[0], arguments.buffers[1]);
    return;
  }
  // With a factor the 16-bit kernels round the product, too.
  Arithmetic each_step = call.arithmetic();
  if (std::fabs(alpha) != 1) each_step.inner = each_step.stored;
  const InArithmetic in(each_step);
  const bool rounds = !fits(call.arithmetic().stored, alpha);
  const BoundedValue factor = {alpha,
                               rounds ? call.arithmetic().stored_rounding(std::fabs(alpha)) : 0};
  write_each(call, result, [&](std::int64_t i, double out) {
    const BoundedValue b = arguments.buffers[1].number(i);
    return stored_error(arguments.buffers[0].number(i) + (alpha == 1 ? b : factor * b), out);
  });
}

void add(OpCall& call) { add_or_subtract(call, "self", "other", 1); }
void subtract(OpCall& call) { add_or_subtract(call, "self", "other", -1); }
void subtract_from(OpCall& call) { add_or_subtract(call, "other", "self", -1); }

void negate(OpCall& call) {
  const at::Tensor& result = call.result();
  if (!is_real_floating(result)) return;
  const Buffer x = call.read(call.required_view("self"), result.sizes());
  if (x.cells == nullptr) return call.write(result, nullptr);
  Cell* cells = call.arena().cells(x.size);
  for (std::int64_t i = 0; i < x.size; ++i) cells[i] = x.cell(i);
  call.write(result, cells);
}

// Scales a sum by a number. The run may scale the terms instead (an average divides before or after
// the sum).
Cell scaled(const Cell& sum, BoundedValue factor, bool divides, const Arithmetic& arithmetic) {
  int exponent = 0;
  std::frexp(factor.value, &exponent);
  const bool power_of_two = is_power_of_two(factor.value);
  const double size = divides ? 1 / std::fabs(factor.value) : std::fabs(factor.value);
  Cell out = sum;
  if (std::isinf(sum.error)) return out;  // it may overflow before it is scaled
  out.magnitude = sum.magnitude * size;
  const double from_factor = divides ? factor.error * size : factor.error / std::fabs(factor.value);
  out.sum_error = sum.sum_error * size + out.magnitude * from_factor;
  bool exact = factor.exact() && sum.unit != Cell::kInexact;
  if (exact) {
    const int shift =
        power_of_two ? (divides ? 1 - exponent : exponent - 1) : lowest_bit(factor.value);
    exact = power_of_two || !divides;
    if (exact) {
      out.unit = static_cast<std::int16_t>(sum.unit + shift);
      exact = out.unit >= arithmetic.stored.min_exponent &&
              (power_of_two ||
               out.magnitude <= std::ldexp(1.0, arithmetic.stored.significand_bits + out.unit));
    }
  }
  if (!exact) {
    out.unit = Cell::kInexact;
    // Each term is rounded once, or twice with a reciprocal.
    out.sum_error += (power_of_two ? 0
                                   : (divides ? 2 : 1) *
                                         (arithmetic.stored.unit_roundoff + arithmetic.simulated)) *
                         out.magnitude +
                     sum.terms * arithmetic.stored.smallest;
  }
  return finished(out, arithmetic);
}

// Returns the cell of a product that the run may associate and order otherwise. It keeps the
// figures of its factors.
Cell product_cell(const Cell& x, double a, const Cell& y, double b, double out,
                  const Arithmetic& arithmetic) {
  const auto figures_of = [](const Cell& cell, double value) {
    return cell.product.factors > 0 ? cell.product : factor({value, cell.error});
  };
  const ProductFigures product = multiplied(figures_of(x, a), a, figures_of(y, b), b, arithmetic);
  const double error = product_error(product, arithmetic);
  Cell cell = inexact_cell(out, error);
  if (error == 0) cell.unit = static_cast<std::int16_t>(lowest_bit(out));
  cell.product = product;
  return cell;
}

// Multiplies tensors. A product may be part of a chain of factors that the run takes in another
// order (a product over ranks and its adjoint). If the whole is exact, any part of it is; if not,
// an exact part may not be exact in the run.
void multiply_tensors(OpCall& call) {
  const at::Tensor& result = call.result();
  const BoundedView self = call.required_view("self"), other = call.required_view("other");
  const Buffer a = call.read(self, result.sizes(), true);
  const Buffer b = call.read(other, result.sizes(), true);
  const Buffer out = call.read(call.context().shadows.view_of(result), result.sizes());
  const InArithmetic in(call.arithmetic());
  Cell* cells = nullptr;
  for (std::int64_t i = 0; i < out.size; ++i) {
    const bool any_order = self.operand || other.operand || a.cell(i).product.factors > 0 ||
                           b.cell(i).product.factors > 0;
    if (any_order && std::isfinite(out.value(i))) {
      if (cells == nullptr) cells = call.arena().cells(out.size);
      cells[i] = product_cell(a.cell(i), a.value(i), b.cell(i), b.value(i), out.value(i),
                              call.arithmetic());
      continue;
    }
    const BoundedValue x = a.number(i), y = b.number(i);
    double error = stored_error(x * y, out.value(i));
    const int x_products = a.cell(i).exact_products, y_products = b.cell(i).exact_products;
    int products = 0;
    if (error != 0) {
      if (x_products + y_products > 0)
        error += call.arithmetic().stored_gamma(x_products + y_products) *
                 (std::fabs(out.value(i)) + error);
    } else if (out.value(i) != 0 && std::isfinite(out.value(i))) {
      products =
          x_products + y_products + (is_power_of_two(x.value) || is_power_of_two(y.value) ? 0 : 1);
    }
    if (error == 0 && products == 0) continue;
    if (cells == nullptr) cells = call.arena().cells(out.size);
    cells[i] = error != 0 ? inexact_cell(out.value(i), error) : expanded(Cell(), out.value(i));
    cells[i].exact_products = static_cast<std::int16_t>(std::min(products, 10000));
  }
  call.write(result, cells);
}

void multiply(OpCall& call) {
  const at::Tensor& result = call.result();
  if (!is_real_floating(result)) return;
  const std::optional<BoundedView> factor = call.view("other");
  const std::optional<BoundedView> self = call.view("self");
  const bool divides = call.traits().name == "div";
  const bool by_number =
      factor && factor->wrapped && self && call.argument("rounding_mode") == nullptr;
  if (!by_number) return divides ? apply_formula(call) : multiply_tensors(call);
  if (const at::Tensor* x = call.tensor("self")) {
    if (call.context().shadows.is_stacked(*x)) call.context().shadows.mark_stacked(result);
  }
  const Buffer x = call.read(*self, result.sizes());
  const Buffer f = call.read(*factor, {}, true);
  const bool any_sum = x.cells != nullptr && std::any_of(x.cells, x.cells + (x.step ? x.size : 1),
                                                         [](const Cell& c) { return c.terms > 1; });
  if (!any_sum || f.value(0) == 0 || !std::isfinite(f.value(0))) return apply_formula(call);
  const InArithmetic in(call.arithmetic());
  const Buffer out = call.read(result);
  Cell* cells = call.arena().cells(x.size);
  for (std::int64_t i = 0; i < x.size; ++i) {
    call.at_element(i, result.sizes());
    if (x.cell(i).terms > 1 && std::isfinite(out.value(i))) {
      cells[i] = scaled(x.cell(i), f.number(0), divides, call.arithmetic());
      continue;
    }
    const BoundedValue a[2] = {x.number(i), f.number(0)};
    const double error = stored_error(call.traits().formula->evaluate(a), out.value(i));
    if (error != 0) cells[i] = inexact_cell(out.value(i), error);
  }
  call.write(result, cells);
}

constexpr RuleRow kTermRules[] = {
    // operator, rule
    {"add", add},    {"sub", subtract}, {"rsub", subtract_from},
    {"neg", negate}, {"mul", multiply}, {"div", multiply},
};

}  // namespace

std::span<const RuleRow> term_rules() { return kTermRules; }

Cell merged(const Cell& a, const Cell& b) {
  const auto adds_nothing = [](const Cell& cell) {
    return cell.plain() || (cell.magnitude == 0 && cell.sum_error == 0);
  };
  if (adds_nothing(a)) return b;
  if (adds_nothing(b)) return a;
  return {0,
          a.sum_error + b.sum_error,
          a.magnitude + b.magnitude,
          a.terms + b.terms,
          std::min(a.unit, b.unit),
          0,
          {}};
}

Cell finished(Cell cell, const Arithmetic& arithmetic) {
  if (cell.terms <= 1) {
    cell.error = cell.sum_error;
    if (cell.exact_products > 0 || cell.product.factors > 0) return cell;
    if (cell.error == 0 && cell.magnitude <= arithmetic.stored.largest) return Cell();
  } else {
    const bool exact =
        cell.unit != Cell::kInexact &&
        cell.magnitude <= std::ldexp(1.0, arithmetic.stored.significand_bits + cell.unit);
    cell.error =
        cell.sum_error + (exact ? 0 : arithmetic.stored_gamma(cell.terms - 1) * cell.magnitude);
  }
  if (!(cell.magnitude + cell.error <= arithmetic.stored.largest)) cell.error = kInfinity;
  return cell;
}

}  // namespace distgrad::tolerance
