// Pointwise operators: running a formula over all elements, and those that look at the terms of sums (add, products with
// numbers) or return no floating-point value (comparisons).
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Number kAbsent = {0, -1};

// The formula's arguments as buffers; absent ones keep no values.
struct Arguments {
  std::array<Buffer, 6> buffers;
  std::array<bool, 6> present{};
  std::size_t count = 0;

  void at(std::int64_t i, Number* numbers) const {
    for (std::size_t k = 0; k < count; ++k) numbers[k] = present[k] ? buffers[k].number(i) : kAbsent;
  }
};

Arguments read_arguments(OpCall& call, std::span<const std::string_view> names, c10::IntArrayRef sizes,
                         bool numbers_in_inner) {
  Arguments arguments;
  for (const std::string_view name : names) {
    if (name.empty()) break;
    if (const std::optional<View> view = call.view(name)) {
      arguments.buffers[arguments.count] = call.read(*view, sizes, numbers_in_inner);
      arguments.present[arguments.count] = true;
    }
    ++arguments.count;
  }
  return arguments;
}

// These kernels read a Python number in what they compute in (opmath_t); elsewhere it becomes a tensor of the dtype.
bool reads_numbers_in_inner(std::string_view op) {
  return op == "add" || op == "sub" || op == "rsub" || op == "mul" || op == "div" || op == "addcmul" || op == "addcdiv";
}

template <typename F>
void write_each(OpCall& call, const at::Tensor& result, const F& error_at) {
  const Buffer out = call.read(call.context().shadows.view_of(result), result.sizes());
  double* errors = call.arena().doubles(out.size);
  for (std::int64_t i = 0; i < out.size; ++i) {
    call.at_element(i, result.sizes());
    errors[i] = error_at(i, out.value(i));
  }
  call.write_errors(result, out, errors);
}

// ---- sums and multiples of sums

double sign_of_alpha(const OpCall& call) {
  const std::optional<double> alpha = call.number("alpha");
  return alpha.value_or(1);
}

// In backward, additions are those of autograd's accumulation, or may be: their order is the engine's business.
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
  const Arguments arguments = read_arguments(call, names, result.sizes(), true);
  if (call.in_backward() && std::fabs(alpha) == 1) {
    add_terms(call, arguments.buffers[0], arguments.buffers[1]);
    return;
  }
  const InArithmetic in(call.arithmetic());
  const bool rounds = !fits(call.arithmetic().inner, alpha);
  const Number factor = rounds ? rounded_constant(alpha) : constant(alpha);
  write_each(call, result, [&](std::int64_t i, double out) {
    const Number b = arguments.buffers[1].number(i);
    return stored_error(arguments.buffers[0].number(i) + (alpha == 1 ? b : factor * b), out);
  });
}

void add(OpCall& call) { add_or_subtract(call, "self", "other", 1); }
void subtract(OpCall& call) { add_or_subtract(call, "self", "other", -1); }
void subtract_from(OpCall& call) { add_or_subtract(call, "other", "self", -1); }

void negate(OpCall& call) {
  const at::Tensor& result = call.result();
  if (!is_real_floating(result)) return;
  const Buffer x = call.read(*call.view("self"), result.sizes());
  if (x.cells == nullptr) return call.write(result, nullptr);
  Cell* cells = call.arena().cells(x.size);
  for (std::int64_t i = 0; i < x.size; ++i) cells[i] = x.cell(i);
  call.write(result, cells);
}

// A sum times a number: the run may scale the terms instead (an average divides before or after the sum).
Cell scaled(const Cell& sum, Number factor, bool divides, const Arithmetic& arithmetic) {
  int exponent = 0;
  const bool power_of_two = std::fabs(std::frexp(factor.value, &exponent)) == 0.5;
  const double size = divides ? 1 / std::fabs(factor.value) : std::fabs(factor.value);
  Cell out = sum;
  out.magnitude = sum.magnitude * size;
  const double from_factor = divides ? factor.error * size : factor.error / std::fabs(factor.value);
  out.sum_error = sum.sum_error * size + out.magnitude * from_factor;
  bool exact = factor.exact() && sum.unit != Cell::kInexact;
  if (exact) {
    const int shift = power_of_two ? (divides ? 1 - exponent : exponent - 1) : lowest_bit(factor.value);
    exact = power_of_two || !divides;
    if (exact) {
      out.unit = sum.unit + shift;
      exact = out.unit >= arithmetic.stored.min_exponent &&
              (power_of_two || out.magnitude <= std::ldexp(1.0, arithmetic.stored.significand_bits + out.unit));
    }
  }
  if (!exact) {
    out.unit = Cell::kInexact;
    // Each term rounded once, twice where a reciprocal is.
    out.sum_error += (power_of_two ? 0 : (divides ? 2 : 1) * (arithmetic.stored.unit_roundoff + arithmetic.simulated)) *
                         out.magnitude +
                     sum.terms * arithmetic.stored.smallest;
  }
  return finished(out, arithmetic);
}

void multiply(OpCall& call) {
  const at::Tensor& result = call.result();
  if (!is_real_floating(result)) return;
  const std::optional<View> factor = call.view("other");
  const std::optional<View> self = call.view("self");
  const bool divides = call.traits().name == "div";
  const bool by_number = factor && factor->wrapped && self && call.argument("rounding_mode") == nullptr;
  if (!by_number) return apply_formula(call);
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
    const Number a[2] = {x.number(i), f.number(0)};
    const double error = stored_error(call.traits().formula->evaluate(a), out.value(i));
    if (error != 0) cells[i] = inexact_cell(out.value(i), error);
  }
  call.write(result, cells);
}

// ---- copies

// Every element of the result is the argument's, converted to the result's type where that differs.
void copy_from(OpCall& call, std::string_view name) {
  const at::Tensor& result = call.result();
  const std::optional<View> source = call.view(name);
  if (!source) return;
  const Buffer x = call.read(*source, result.sizes());
  if (!is_real_floating(result)) {  // a conversion to integers or bool
    if (x.cells == nullptr) return;
    for (std::int64_t i = 0; i < x.size; ++i) {
      call.at_element(i, result.sizes());
      call.branch(x.number(i), {std::nearbyint(x.value(i)), 0});
    }
    return;
  }
  const Buffer out = call.read(result);
  Cell* cells = nullptr;
  const InArithmetic in(call.arithmetic());
  for (std::int64_t i = 0; i < x.size; ++i) {
    Cell cell = x.cell(i);
    const bool changed = !(out.value(i) == x.value(i)) && std::isfinite(x.value(i));
    if (!changed && cell.plain()) continue;
    if (changed || call.arithmetic().simulated > format_of(DType::kFloat64).unit_roundoff) {
      // Rounded on the way, in the simulation or in the run.
      const double error = cell.error + std::fabs(out.value(i) - x.value(i)) +
                           call.arithmetic().stored_rounding(std::fabs(out.value(i)) + cell.error);
      cell = inexact_cell(out.value(i), error);
    }
    if (cells == nullptr) cells = call.arena().cells(x.size);
    cells[i] = cell;
  }
  call.write(result, cells);
}

void copy_self(OpCall& call) { copy_from(call, "self"); }
void copy_source(OpCall& call) { copy_from(call, "src"); }
void fill(OpCall& call) {
  call.write(call.result(), nullptr);
  copy_from(call, call.view("value") ? "value" : "fill_value");
}
void constants(OpCall& call) {
  for (const at::Tensor& result : call.results())
    if (is_real_floating(result)) call.write(result, nullptr);
}

// A number taken out of a tensor loses its error; what is computed from it cannot be judged.
void taken_number(OpCall& call) {
  const at::Tensor* tensor = call.tensor("self");
  if (tensor == nullptr || !is_real_floating(*tensor)) return;
  const Buffer x = call.read(*call.view("self"));
  if (x.size == 1 && x.error(0) != 0) call.branch(x.number(0), {x.value(0), 0});
}

// start + i step, where the run may compute the step and every element in the dtype.
void evenly_spaced(OpCall& call) {
  const at::Tensor& result = call.result();
  if (!is_real_floating(result)) return;
  const InArithmetic in(call.arithmetic());
  const Buffer out = call.read(result);
  double largest = 0;
  for (std::int64_t i = 0; i < out.size; ++i) largest = std::max(largest, std::fabs(out.value(i)));
  // Integers are exact in every type that holds them.
  bool integers = largest <= std::ldexp(1.0, call.arithmetic().stored.significand_bits);
  for (std::int64_t i = 0; i < out.size; ++i) integers = integers && out.value(i) == std::floor(out.value(i));
  const std::optional<double> step = call.number("step");
  if (integers && (call.traits().name == "arange" ? step.value_or(1) == std::floor(step.value_or(1)) : false)) return;
  double* errors = call.arena().doubles(out.size);
  // step, its product with i, and the sum are rounded once each; largest bounds all of them.
  for (std::int64_t i = 0; i < out.size; ++i) errors[i] = call.arithmetic().stored_gamma(4) * 2 * largest;
  if (call.traits().name == "logspace")
    for (std::int64_t i = 0; i < out.size; ++i)
      errors[i] = std::fabs(out.value(i)) * std::expm1(call.arithmetic().stored_gamma(6) * 64);
  call.write_errors(result, out, errors);
}

// ---- comparisons

void compare(OpCall& call) {
  const at::Tensor& result = call.result();
  if (call.in_backward()) return;
  const std::string_view names[] = {"self", "other"};
  const Arguments arguments = read_arguments(call, names, result.sizes(), false);
  if (arguments.buffers[0].cells == nullptr && arguments.buffers[1].cells == nullptr) return;
  for (std::int64_t i = 0; i < arguments.buffers[0].size; ++i) {
    call.at_element(i, result.sizes());
    call.branch(arguments.buffers[0].number(i), arguments.buffers[1].number(i));
  }
}

// ---- losses with a reduction, and their backward kernels

void reduced_loss(OpCall& call) {
  const std::int64_t reduction = call.integer("reduction", 1);
  const at::Tensor& result = call.result();
  if (reduction == 0) return apply_formula(call);
  const at::Tensor* self = call.tensor("self");
  const Formula& formula = *call.traits().formula;
  const Dims sizes = call.view("self")->sizes;
  const Arguments arguments = read_arguments(call, formula.arguments, sizes, true);
  const Arithmetic& arithmetic = call.arithmetic();
  const InArithmetic in(arithmetic);
  const std::int64_t n = self->numel();
  double* values = call.arena().doubles(n);
  Cell* cells = call.arena().cells(n);
  Number numbers[6];
  for (std::int64_t i = 0; i < n; ++i) {
    arguments.at(i, numbers);
    const Number loss = formula.evaluate(numbers);
    values[i] = loss.value;
    const double error = stored_error(loss, loss.value);
    if (error != 0) cells[i] = inexact_cell(loss.value, error);
  }
  bool exact = false;
  Number total = {0, sum_error({values, cells, n, 1}, arithmetic, &exact)};
  for (std::int64_t i = 0; i < n; ++i) total.value += values[i];
  if (arithmetic.narrows() && !exact) total.error += arithmetic.stored_rounding(std::fabs(total.value) + total.error);
  if (reduction == 1 && n != 1) {
    total = total / constant(static_cast<double>(n));
    if (!total.exact()) total.error += arithmetic.inner_rounding(std::fabs(total.value) + total.error);
  }
  write_each(call, result, [&](std::int64_t, double out) { return stored_error(total, out); });
}

void loss_backward(OpCall& call, Number (*slope)(const Number*), std::span<const std::string_view> names) {
  const at::Tensor& result = call.result();
  const Arguments arguments = read_arguments(call, names, result.sizes(), true);
  const InArithmetic in(call.arithmetic());
  const Number share = call.integer("reduction", 1) == 1
                           ? constant(1) / constant(static_cast<double>(call.tensor("self")->numel()))
                           : constant(1);
  Number numbers[6];
  write_each(call, result, [&](std::int64_t i, double out) {
    arguments.at(i, numbers);
    return stored_error(numbers[0] * share * slope(numbers), out);
  });
}

void mse_loss_backward(OpCall& call) {
  constexpr std::string_view names[] = {"grad_output", "self", "target"};
  loss_backward(call, [](const Number* a) { return constant(2) * (a[1] - a[2]); }, names);
}
void smooth_l1_loss_backward(OpCall& call) {
  constexpr std::string_view names[] = {"grad_output", "self", "target", "beta"};
  loss_backward(call, [](const Number* a) {
    const Number d = a[1] - a[2];
    if (std::fabs(d.value) < a[3].value) return d / a[3];
    return constant(d.value > 0 ? 1 : d.value < 0 ? -1 : 0);
  }, names);
}
void huber_loss_backward(OpCall& call) {
  constexpr std::string_view names[] = {"grad_output", "self", "target", "delta"};
  loss_backward(call, [](const Number* a) {
    const Number d = a[1] - a[2];
    if (std::fabs(d.value) <= a[3].value) return d;
    return d.value > 0 ? a[3] : -a[3];
  }, names);
}
void binary_cross_entropy_backward(OpCall& call) {
  constexpr std::string_view names[] = {"grad_output", "self", "target", "weight"};
  loss_backward(call, [](const Number* a) {
    const Number scale = (constant(1) - a[1]) * a[1];
    const Number slope = (a[1] - a[2]) / (scale.value > 1e-12 ? scale : constant(1e-12));
    return given(a[3]) ? slope * a[3] : slope;
  }, names);
}

// Two results: the function, and exp(-|x|) kept for backward.
void log_sigmoid_forward(OpCall& call) {
  apply_formula(call);
  if (call.results().size() < 2 || call.result(1).numel() != call.result(0).numel()) return;
  const Buffer x = call.read(*call.view("self"), call.result(0).sizes());
  const InArithmetic in(call.arithmetic());
  write_each(call, call.result(1), [&](std::int64_t i, double out) {
    const Number z = {-std::fabs(x.value(i)), x.error(i)};
    return stored_error(monotone([](double v) { return std::exp(v); }, z, 2), out);
  });
}

constexpr RuleRow kRules[] = {
    // operator, rule
    {"add", add},
    {"sub", subtract},
    {"rsub", subtract_from},
    {"neg", negate},
    {"mul", multiply},
    {"div", multiply},
    {"clone", copy_self},
    {"contiguous", copy_self},
    {"positive", copy_self},
    {"_to_copy", copy_self},
    {"copy", copy_source},
    {"fill", fill},
    {"zero", constants},
    {"full_like", fill},
    {"zeros_like", constants},
    {"ones_like", constants},
    {"empty_like", constants},
    {"new_zeros", constants},
    {"new_ones", constants},
    {"new_empty", constants},
    {"new_full", fill},
    {"new_empty_strided", constants},
    {"_local_scalar_dense", taken_number},
    {"arange", evenly_spaced},
    {"linspace", evenly_spaced},
    {"logspace", evenly_spaced},
    {"eq", compare},
    {"ne", compare},
    {"lt", compare},
    {"le", compare},
    {"gt", compare},
    {"ge", compare},
    {"mse_loss", reduced_loss},
    {"smooth_l1_loss", reduced_loss},
    {"huber_loss", reduced_loss},
    {"binary_cross_entropy", reduced_loss},
    {"mse_loss_backward", mse_loss_backward},
    {"smooth_l1_loss_backward", smooth_l1_loss_backward},
    {"huber_loss_backward", huber_loss_backward},
    {"binary_cross_entropy_backward", binary_cross_entropy_backward},
    {"log_sigmoid_forward", log_sigmoid_forward},
};

}  // namespace

std::span<const RuleRow> pointwise_rules() { return kRules; }

void apply_formula(OpCall& call) {
  const at::Tensor& result = call.result();
  if (!is_real_floating(result)) return;
  const Formula& formula = *call.traits().formula;
  const Arguments arguments =
      read_arguments(call, formula.arguments, result.sizes(), reads_numbers_in_inner(call.traits().name));
  const InArithmetic in(call.arithmetic());
  Number numbers[6];
  write_each(call, result, [&](std::int64_t i, double out) {
    arguments.at(i, numbers);
    return stored_error(formula.evaluate(numbers), out);
  });
}

Cell merged(const Cell& a, const Cell& b) {
  if (a.plain()) return b;
  if (b.plain()) return a;
  return {0, a.sum_error + b.sum_error, a.magnitude + b.magnitude, a.terms + b.terms, std::min(a.unit, b.unit)};
}

Cell finished(Cell cell, const Arithmetic& arithmetic) {
  if (cell.terms <= 1) {
    cell.error = cell.sum_error;
    if (cell.error == 0 && cell.magnitude <= arithmetic.stored.largest) return Cell();
  } else {
    const bool exact = cell.unit != Cell::kInexact &&
                       cell.magnitude <= std::ldexp(1.0, arithmetic.stored.significand_bits + cell.unit);
    cell.error = cell.sum_error + (exact ? 0 : arithmetic.stored_gamma(cell.terms - 1) * cell.magnitude);
  }
  if (!(cell.magnitude + cell.error <= arithmetic.stored.largest)) cell.error = kInfinity;
  return cell;
}

}  // namespace distgrad::tolerance
