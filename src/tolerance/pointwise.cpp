// Bounds pointwise operators that are no formula: copies, comparisons, functions without a closed
// form, and gated units.
#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

#include "tolerance/elements.h"
#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

// ---- copies

// Copies every element of the argument, converted to the result's type if that differs.
void copy_from(OpCall& call, std::string_view name) {
  const at::Tensor& result = call.result();
  const std::optional<BoundedView> source = call.view(name);
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

// Does nothing for in-place operators that change only a tensor's shape.
void reshaped(OpCall&) {}

// A number taken out of a tensor loses its error, so what is computed from it cannot be judged.
void taken_number(OpCall& call) {
  const at::Tensor* tensor = call.tensor("self");
  if (tensor == nullptr || !is_real_floating(*tensor)) return;
  const Buffer x = call.read(call.required_view("self"));
  if (x.size == 1 && x.error(0) != 0) call.branch(x.number(0), {x.value(0), 0});
}

// Bounds start + i step; the run may compute the step and every element in the dtype.
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
  // The step, its product with i, and the sum are each rounded once; `largest` bounds all of them.
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

// Compares for torch.equal, which has one answer for all elements.
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

// Compares, for bucketize and searchsorted, every value with every boundary.
void compare_with_boundaries(OpCall& call) {
  const bool searches = call.traits().name == "searchsorted";
  const std::optional<BoundedView> values = call.view("self"),
                                   boundaries =
                                       call.view(searches ? "sorted_sequence" : "boundaries");
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
  const BoundedView view = call.view(at);
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
  // Series and recurrences take about ten operations. digamma and polygamma also cancel terms of
  // size 1/x and log x.
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
  BoundedView first = call.required_view("self");
  first.sizes[dim] = half;
  BoundedView second = first;
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

// Bounds both results, the second before its reduction over the broadcast dims.
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

// Bounds both results: the function, and exp(-|x|), which is kept for backward.
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

constexpr RuleRow kPointwiseRules[] = {
    // operator, rule
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
    {"log_sigmoid_forward", log_sigmoid_forward},
};

}  // namespace

std::span<const RuleRow> pointwise_rules() { return kPointwiseRules; }

}  // namespace distgrad::tolerance
