#include "tolerance/rules.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

namespace distgrad::tolerance {
namespace {

// Computes Splitmix64's mixing step, for reproducible signs without random state.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Returns the argument with every element moved by its error or by a rounding to the dtype, up or
// down.
at::Tensor perturbed(OpCall& call, const BoundedView& view, std::uint64_t pattern) {
  at::Tensor tensor = at::empty(c10::IntArrayRef(view.sizes), at::kDouble);
  double* data = tensor.mutable_data_ptr<double>();
  const Buffer buffer = call.read(view);
  for (std::int64_t i = 0; i < buffer.size; ++i) {
    const double x = buffer.value(i);
    const double error = buffer.error(i) + call.arithmetic().stored_rounding(std::fabs(x));
    data[i] = x + (mixed(pattern * 1000003 + static_cast<std::uint64_t>(i)) & 1 ? error : -error);
  }
  return tensor;
}

}  // namespace

void find_rule(OpTraits& traits) {
  for (const Formula& formula : formulas()) {
    if (formula.op != traits.name) continue;
    traits.formula = &formula;
    traits.rule = apply_formula;
  }
  for (const auto rules : {term_rules(), pointwise_rules(), rearranging_rules(), reduction_rules(),
                           exponential_rules(), normalisation_rules(), norm_rules(), loss_rules(),
                           contraction_rules(), matrix_rules()})
    for (const RuleRow& row : rules)
      if (row.op == traits.name) traits.rule = row.rule;
  traits.known = traits.rule != nullptr;
}

void estimate_by_perturbation(OpCall& call) {
  // Gives the number of random sign patterns; a linear map deviates most at one of 2^n corners.
  constexpr int kPatterns = 8;
  // Covers what eight patterns may miss, and the operator's own rounding.
  constexpr double kSafety = 8;
  for (const at::Tensor& result : call.results()) {
    if (!is_real_floating(result)) continue;
    std::vector<double> deviation(static_cast<std::size_t>(result.numel()), 0.0);
    const std::size_t which = static_cast<std::size_t>(&result - call.results().data());
    const Buffer out = call.read(call.context().shadows.view_of(result), result.sizes());
    for (std::uint64_t pattern = 0; pattern < kPatterns; ++pattern) {
      torch::jit::Stack stack;
      for (std::size_t i = 0; i < call.arguments().size(); ++i) {
        const c10::IValue& value = call.arguments()[i];
        if (value.isTensor() && is_real_floating(value.toTensor())) {
          stack.emplace_back(perturbed(call, call.view(static_cast<int>(i)), pattern * 17 + i));
        } else if (value.isTensorList()) {
          c10::List<at::Tensor> list;
          for (const at::Tensor& tensor : value.toTensorVector())
            list.push_back(is_real_floating(tensor)
                               ? perturbed(call, call.context().shadows.view_of(tensor),
                                           pattern * 17 + i + list.size())
                               : tensor);
          stack.emplace_back(std::move(list));
        } else {
          stack.push_back(value);
        }
      }
      try {
        call.op().callBoxed(stack);
      } catch (const c10::Error&) {
        continue;
      }
      if (which >= stack.size() || !stack[which].isTensor()) continue;
      const at::Tensor moved = stack[which].toTensor().to(at::kDouble).contiguous();
      for (std::int64_t i = 0; i < std::min(moved.numel(), out.size); ++i)
        deviation[i] =
            std::max(deviation[i], std::fabs(moved.const_data_ptr<double>()[i] - out.value(i)));
    }
    double* errors = call.arena().doubles(out.size);
    const InArithmetic in(call.arithmetic());
    for (std::int64_t i = 0; i < out.size; ++i) {
      if (!std::isfinite(out.value(i))) {
        errors[i] = 0;
        continue;
      }
      errors[i] = stored_error(
          {out.value(i),
           kSafety * (deviation[i] + call.arithmetic().stored_rounding(std::fabs(out.value(i))))},
          out.value(i));
    }
    call.write_errors(result, out, errors);
  }
}

}  // namespace distgrad::tolerance
