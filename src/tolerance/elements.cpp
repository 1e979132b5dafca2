#include "tolerance/elements.h"

#include <ATen/core/Tensor.h>

#include <optional>

#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

constexpr BoundedValue kAbsent = {0, -1};

std::int64_t element_count_of(c10::IntArrayRef sizes) {
  std::int64_t n = 1;
  for (const std::int64_t s : sizes) n *= s;
  return n;
}

// These kernels read a Python number in the type they compute in (opmath_t); for others it becomes
// a tensor of the dtype.
bool reads_numbers_in_inner(std::string_view op) {
  return op == "mul" || op == "div" || op == "addcmul" || op == "addcdiv";
}

}  // namespace

void Arguments::at(std::int64_t i, BoundedValue* numbers) const {
  for (std::size_t k = 0; k < count; ++k) numbers[k] = present[k] ? buffers[k].number(i) : kAbsent;
}

Arguments read_arguments(OpCall& call, std::span<const std::string_view> names,
                         c10::IntArrayRef sizes, bool numbers_in_inner) {
  Arguments arguments;
  for (const std::string_view name : names) {
    if (name.empty()) break;
    if (const std::optional<BoundedView> view = call.view(name);
        view && (view->numel() != 0 || element_count_of(sizes) == 0)) {
      arguments.buffers[arguments.count] = call.read(*view, sizes, numbers_in_inner);
      arguments.present[arguments.count] = true;
    }
    ++arguments.count;
  }
  return arguments;
}

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

}  // namespace distgrad::tolerance
