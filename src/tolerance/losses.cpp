// Bounds losses with a reduction, and their backward kernels.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

#include "tolerance/elements.h"
#include "tolerance/rows.h"
#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

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

constexpr RuleRow kLossRules[] = {
    // operator, rule
    {"mse_loss", reduced_loss},
    {"smooth_l1_loss", reduced_loss},
    {"huber_loss", reduced_loss},
    {"binary_cross_entropy", reduced_loss},
    {"mse_loss_backward", mse_loss_backward},
    {"smooth_l1_loss_backward", smooth_l1_loss_backward},
    {"huber_loss_backward", huber_loss_backward},
    {"binary_cross_entropy_backward", binary_cross_entropy_backward},
    {"nll_loss_forward", nll_loss},
    {"nll_loss_backward", nll_loss_backward},
};

}  // namespace

std::span<const RuleRow> loss_rules() { return kLossRules; }

}  // namespace distgrad::tolerance
