// Holds what rules of pointwise operators share: arguments that are broadcast to the result's
// elements, and errors written for each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tolerance/op_call.h"

namespace distgrad::tolerance {

// Holds the formula's arguments as buffers; absent ones keep no values.
struct Arguments {
  std::array<Buffer, 6> buffers;
  std::array<bool, 6> present{};
  std::size_t count = 0;

  // Writes the arguments at element i; absent ones are not given().
  void at(std::int64_t i, BoundedValue* numbers) const;
};

// Reads the arguments of these names (up to an empty one), each broadcast to `sizes`. With
// `numbers_in_inner` a Python number has the type the kernel computes in, else it is rounded to the
// dtype.
Arguments read_arguments(OpCall&, std::span<const std::string_view> names, c10::IntArrayRef sizes,
                         bool numbers_in_inner);

// Writes error_at(i, value) for each element of the result.
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

}  // namespace distgrad::tolerance
