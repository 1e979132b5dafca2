// Pointwise operators: running a formula over all elements, and those that look at the terms of
// sums (add, products with numbers) or return no floating-point value (comparisons).
#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

constexpr BoundedValue kAbsent = {0, -1};

// The formula's arguments as buffers; absent ones keep no values.
struct Arguments {
  std::array<Buffer, 6> buffers;
  std::array<bool, 6> present{};
  std::size_t count = 0;

  void at(std::int64_t i, BoundedValue* numbers) const {
    for (std::size_t k = 0; k < count; ++k)
      numbers[k] = present[k] ? buffers[k].number(i) : kAbsent;
  }
};

std::int64_t element_count_of(c10::IntArrayRef sizes) {
  std::int64_t n = 1;
  for (const std::int64_t s : sizes) n *= s;
  return n;
}

Arguments read_arguments(OpCall& call, std::span<const std::string_view> names,
                         c10::IntArrayRef sizes, bool numbers_in_inner) {
  Arguments arguments;
  for (const std::string_view name : names) {
    if (name.empty()) break;
    if (const std::optional<View> view = call.view(name);
        view && (view->numel() != 0 || element_count_of(sizes) == 0)) {
      arguments.buffers[arguments.count] = call.read(*view, sizes, numbers_in_inner);
      arguments.present[arguments.count] = true;
    }
    ++arguments.count;
  }
  return arguments;
}

// These kernels read a Python number in what they compute in (opmath_t); elsewhere it becomes a
// tensor of the dtype.
bool reads_numbers_in_inner(std::string_view op) {
  return op == "mul" || op == "div" || op == "addcmul" || op == "addcdiv";
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

// In backward, additions are those of autograd's accumulation, or may be: their order is the
// engine's business.
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
  // With a factor the 16-bit kernels round the product too.
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

bool is_power_of_two(double value) {
  int exponent = 0;
  return std::fabs(std::frexp(value, &exponent)) == 0.5;
}

// A sum times a number: the run may scale the terms instead (an average divides before or after the
// sum).
Cell scaled(const Cell& sum, BoundedValue factor, bool divides, const Arithmetic& arithmetic) {
  int exponent = 0;
  std::frexp(factor.value, &exponent);
  const bool power_of_two = is_power_of_two(factor.value);
  const double size = divides ? 1 / std::fabs(factor.value) : std::fabs(factor.value);
  Cell out = sum;
  if (std::isinf(sum.error)) return out;  // may overflow before it is scaled
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
    // Each term rounded once, twice where a reciprocal is.
    out.sum_error += (power_of_two ? 0
                                   : (divides ? 2 : 1) *
                                         (arithmetic.stored.unit_roundoff + arithmetic.simulated)) *
                         out.magnitude +
                     sum.terms * arithmetic.stored.smallest;
  }
  return finished(out, arithmetic);
}

// A product that the run may associate and order otherwise: its cell keeps the figures of its
// factors.
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

// A product of tensors: part of a chain of factors, perhaps, that the run takes in another order (a
// product over ranks and its adjoint). Where the whole is exact any part of it is; where it is not,
// an exact part may not be in the run.
void multiply_tensors(OpCall& call) {
  const at::Tensor& result = call.result();
  const View self = call.required_view("self"), other = call.required_view("other");
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
  const std::optional<View> factor = call.view("other");
  const std::optional<View> self = call.view("self");
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
  for (std::int64_t i = 0; i < x.size; ++i) {
    Cell cell = x.cell(i);
    if (cell.plain()) continue;  // the run converts the same value
    const bool converted = out.value(i) != x.value(i) ||
                           call.arithmetic().simulated > format_of(DType::kFloat64).unit_roundoff;
    if (converted) {  // rounded on the way, in the simulation and in the run
      const double magnitude =
          std::max(std::fabs(out.value(i)), std::fabs(x.value(i))) + cell.error;
      cell = inexact_cell(out.value(i), cell.error + call.arithmetic().stored_rounding(magnitude));
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

// In place, but only what a tensor's shape is.
void reshaped(OpCall&) {}

// A number taken out of a tensor loses its error; what is computed from it cannot be judged.
void taken_number(OpCall& call) {
  const at::Tensor* tensor = call.tensor("self");
  if (tensor == nullptr || !is_real_floating(*tensor)) return;
  const Buffer x = call.read(call.required_view("self"));
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
  for (std::int64_t i = 0; i < out.size; ++i)
    integers = integers && out.value(i) == std::floor(out.value(i));
  const std::optional<double> step = call.number("step");
  if (integers &&
      (call.traits().name == "arange" ? step.value_or(1) == std::floor(step.value_or(1)) : false))
    return;
  double* errors = call.arena().doubles(out.size);
  // step, its product with i, and the sum are rounded once each; largest bounds all of them.
  for (std::int64_t i = 0; i < out.size; ++i)
    errors[i] = call.arithmetic().stored_gamma(4) * 2 * largest;
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

// torch.equal: one answer for all elements.
void compare_all(OpCall& call) {
  const at::Tensor* a = call.tensor("self");
  const at::Tensor* b = call.tensor("other");
  if (a == nullptr || b == nullptr || a->sizes() != b->sizes()) return;
  const Buffer x = call.read(call.required_view("self")),
               y = call.read(call.required_view("other"));
  for (std::int64_t i = 0; i < x.size; ++i) {
    call.at_element(i, a->sizes());
    call.branch(x.number(i), y.number(i));
  }
}

// bucketize, searchsorted: every value against every boundary.
void compare_with_boundaries(OpCall& call) {
  const bool searches = call.traits().name == "searchsorted";
  const std::optional<View> values = call.view("self"),
                            boundaries = call.view(searches ? "sorted_sequence" : "boundaries");
  if (!values || !boundaries) return;
  const Buffer x = call.read(*values), y = call.read(*boundaries);
  if (x.cells == nullptr && y.cells == nullptr) return;
  for (std::int64_t i = 0; i < x.size; ++i)
    for (std::int64_t k = 0; k < y.size; ++k) {
      call.at_element(i, values->sizes);
      call.branch(x.number(i), y.number(k));
    }
}

// ---- functions without a closed form here: evaluated at the ends of each interval by the operator
// itself

void smooth(OpCall& call) {
  const at::Tensor& result = call.result();
  const int at = call.index_of("self");
  const View view = call.view(at);
  const Buffer x = call.read(view, result.sizes());
  const Buffer out = call.read(call.context().shadows.view_of(result), result.sizes());
  double* deviation = call.arena().doubles(out.size);
  std::fill(deviation, deviation + out.size, 0.0);
  if (x.cells != nullptr) {
    for (const double side : {-1.0, -0.5, 0.5, 1.0}) {
      at::Tensor moved = at::empty(result.sizes(), at::kDouble);
      for (std::int64_t i = 0; i < x.size; ++i)
        moved.mutable_data_ptr<double>()[i] = x.value(i) + side * x.error(i);
      torch::jit::Stack stack(call.arguments().begin(), call.arguments().end());
      stack[static_cast<std::size_t>(at)] = moved;
      call.op().callBoxed(stack);
      const at::Tensor other = stack[0].toTensor().contiguous();
      for (std::int64_t i = 0; i < out.size; ++i) {
        const double d = std::fabs(other.const_data_ptr<double>()[i] - out.value(i));
        deviation[i] = std::isnan(d) ? kInfinity : std::max(deviation[i], d);
      }
    }
  }
  // Series and recurrences of about ten operations; digamma and polygamma also cancel terms of size
  // 1/x and log x.
  const bool cancels = call.traits().name == "digamma" || call.traits().name == "polygamma";
  constexpr double kUlps = 10;
  const InArithmetic in(call.arithmetic());
  write_each(call, result, [&](std::int64_t i, double value) {
    if (!std::isfinite(value)) return x.error(i) == 0 ? 0 : kInfinity;
    const double size =
        std::fabs(value) +
        (cancels ? 1 + 1 / std::fabs(x.value(i)) + std::log1p(std::fabs(x.value(i))) : 0);
    return stored_error({value, deviation[i] + call.arithmetic().inner_rounding(size, kUlps)},
                        value);
  });
}

// ---- gated linear units: the two halves of a dim

void glu(OpCall& call) {
  const at::Tensor& result = call.result();
  const at::Tensor* self = call.tensor("self");
  const bool backward = call.view("grad_output").has_value();
  const std::int64_t given_dim = call.integer("dim", -1);
  const std::int64_t dim = given_dim < 0 ? given_dim + self->dim() : given_dim;
  const std::int64_t half = self->size(dim) / 2;
  View first = call.required_view("self");
  first.sizes[dim] = half;
  View second = first;
  const std::int64_t shift = half * first.strides[dim];
  second.data = static_cast<const char*>(second.data) +
                shift * static_cast<std::int64_t>(c10::elementSize(second.type));
  if (second.cells != nullptr) second.cells += shift;
  const Buffer a = call.read(first, first.sizes), b = call.read(second, second.sizes);
  Arithmetic each_step = call.arithmetic();
  each_step.inner = each_step.stored;
  const InArithmetic in(each_step);
  const auto gate = [&](std::int64_t i) {
    const BoundedValue e = monotone([](double v) { return std::exp(v); }, -b.number(i), 2);
    return constant(1) / (constant(1) + e);
  };
  if (!backward) {
    write_each(call, result, [&](std::int64_t i, double out) {
      return stored_error(a.number(i) * gate(i), out);
    });
    return;
  }
  const Buffer g = call.read(call.required_view("grad_output"), first.sizes);
  write_each(call, result.narrow(dim, 0, half),
             [&](std::int64_t i, double out) { return stored_error(gate(i) * g.number(i), out); });
  write_each(call, result.narrow(dim, half, half), [&](std::int64_t i, double out) {
    const BoundedValue s = gate(i);
    return stored_error((constant(1) - s) * s * a.number(i) * g.number(i), out);
  });
}

// Two results, the second before its reduction over the broadcast dims.
void prelu_backward(OpCall& call) {
  const at::Tensor& result = call.result();
  const Buffer x = call.read(call.required_view("self"), result.sizes()),
               w = call.read(call.required_view("weight"), result.sizes());
  const Buffer g = call.read(call.required_view("grad_output"), result.sizes());
  const InArithmetic in(call.arithmetic());
  write_each(call, result, [&](std::int64_t i, double out) {
    return stored_error(x.value(i) > 0 ? g.number(i) : w.number(i) * g.number(i), out);
  });
  write_each(call, call.result(1), [&](std::int64_t i, double out) {
    return stored_error(x.value(i) > 0 ? BoundedValue{} : x.number(i) * g.number(i), out);
  });
}

// ---- losses with a reduction, and their backward kernels

void reduced_loss(OpCall& call) {
  const std::int64_t reduction = call.integer("reduction", 1);
  const at::Tensor& result = call.result();
  if (reduction == 0) return apply_formula(call);
  const at::Tensor* self = call.tensor("self");
  const Formula& formula = *call.traits().formula;
  const Dims sizes = call.required_view("self").sizes;
  const Arguments arguments = read_arguments(call, formula.arguments, sizes, true);
  const Arithmetic& arithmetic = call.arithmetic();
  // These kernels round each step to the stored type.
  Arithmetic each_step = arithmetic;
  each_step.inner = each_step.stored;
  const InArithmetic in(each_step);
  const std::int64_t n = self->numel();
  double* values = call.arena().doubles(n);
  Cell* cells = call.arena().cells(n);
  BoundedValue numbers[6];
  for (std::int64_t i = 0; i < n; ++i) {
    arguments.at(i, numbers);
    const BoundedValue loss = formula.evaluate(numbers);
    values[i] = loss.value;
    const double error = stored_error(loss, loss.value);
    if (error != 0) cells[i] = inexact_cell(loss.value, error);
  }
  bool exact = false;
  BoundedValue total = {0, sum_error({values, cells, n, 1}, arithmetic, &exact)};
  for (std::int64_t i = 0; i < n; ++i) total.value += values[i];
  if (arithmetic.narrows() && !exact)
    total.error += arithmetic.stored_rounding(std::fabs(total.value) + total.error);
  if (reduction == 1 && n != 1) {
    total = total / constant(static_cast<double>(n));
    if (!total.exact())
      total.error += arithmetic.inner_rounding(std::fabs(total.value) + total.error);
  }
  write_each(call, result, [&](std::int64_t, double out) { return stored_error(total, out); });
}

void loss_backward(OpCall& call, BoundedValue (*slope)(const BoundedValue*),
                   std::span<const std::string_view> names) {
  const at::Tensor& result = call.result();
  const Arguments arguments = read_arguments(call, names, result.sizes(), true);
  Arithmetic each_step = call.arithmetic();
  each_step.inner = each_step.stored;
  const InArithmetic in(each_step);
  const BoundedValue share =
      call.integer("reduction", 1) == 1
          ? constant(1) / constant(static_cast<double>(call.tensor("self")->numel()))
          : constant(1);
  BoundedValue numbers[6];
  write_each(call, result, [&](std::int64_t i, double out) {
    arguments.at(i, numbers);
    return stored_error(numbers[0] * share * slope(numbers), out);
  });
}

void mse_loss_backward(OpCall& call) {
  constexpr std::string_view names[] = {"grad_output", "self", "target"};
  loss_backward(
      call, [](const BoundedValue* a) { return constant(2) * (a[1] - a[2]); }, names);
}
void smooth_l1_loss_backward(OpCall& call) {
  constexpr std::string_view names[] = {"grad_output", "self", "target", "beta"};
  loss_backward(
      call,
      [](const BoundedValue* a) {
        const BoundedValue d = a[1] - a[2];
        if (std::fabs(d.value) < a[3].value) return d / a[3];
        return constant(d.value > 0 ? 1 : d.value < 0 ? -1 : 0);
      },
      names);
}
void huber_loss_backward(OpCall& call) {
  constexpr std::string_view names[] = {"grad_output", "self", "target", "delta"};
  loss_backward(
      call,
      [](const BoundedValue* a) {
        const BoundedValue d = a[1] - a[2];
        if (std::fabs(d.value) <= a[3].value) return d;
        return d.value > 0 ? a[3] : -a[3];
      },
      names);
}
void binary_cross_entropy_backward(OpCall& call) {
  constexpr std::string_view names[] = {"grad_output", "self", "target", "weight"};
  loss_backward(
      call,
      [](const BoundedValue* a) {
        const BoundedValue scale = (constant(1) - a[1]) * a[1];
        const BoundedValue slope = (a[1] - a[2]) / (scale.value > 1e-12 ? scale : constant(1e-12));
        return given(a[3]) ? slope * a[3] : slope;
      },
      names);
}

// Two results: the function, and exp(-|x|) kept for backward.
void log_sigmoid_forward(OpCall& call) {
  apply_formula(call);
  if (call.results().size() < 2 || call.result(1).numel() != call.result(0).numel()) return;
  const Buffer x = call.read(call.required_view("self"), call.result(0).sizes());
  const InArithmetic in(call.arithmetic());
  write_each(call, call.result(1), [&](std::int64_t i, double out) {
    const BoundedValue z = {-std::fabs(x.value(i)), x.error(i)};
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
    {"empty", constants},
    {"empty_strided", constants},
    {"empty_permuted", constants},
    {"zeros", constants},
    {"ones", constants},
    {"full", constants},
    {"eye", constants},
    {"scalar_tensor", constants},
    {"_efficientzerotensor", constants},
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
    {"equal", compare_all},
    {"bucketize", compare_with_boundaries},
    {"searchsorted", compare_with_boundaries},
    {"resize", reshaped},
    {"as_strided", reshaped},
    {"set", reshaped},
    {"squeeze", reshaped},
    {"unsqueeze", reshaped},
    {"transpose", reshaped},
    {"t", reshaped},
    {"detach", reshaped},
    {"lgamma", smooth},
    {"digamma", smooth},
    {"polygamma", smooth},
    {"erfinv", smooth},
    {"i0", smooth},
    {"special_i0e", smooth},
    {"special_i1", smooth},
    {"special_i1e", smooth},
    {"special_erfcx", smooth},
    {"special_log_ndtr", smooth},
    {"glu", glu},
    {"glu_backward", glu},
    {"_prelu_kernel_backward", prelu_backward},
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
  const Arguments arguments = read_arguments(call, formula.arguments, result.sizes(),
                                             reads_numbers_in_inner(call.traits().name));
  Arithmetic arithmetic = call.arithmetic();
  if (formula.stores_each_step) arithmetic.inner = arithmetic.stored;
  const InArithmetic in(arithmetic);
  BoundedValue numbers[6];
  write_each(call, result, [&](std::int64_t i, double out) {
    arguments.at(i, numbers);
    return stored_error(formula.evaluate(numbers), out);
  });
}

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
