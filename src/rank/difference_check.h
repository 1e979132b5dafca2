// Holds what the check of the simulation by finite differences has to know about a program, and
// the direction in which it looks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/program.h"

namespace distgrad {

// Returns whether an expression detaches a value from the graph or casts it. Such a value moves
// with the inputs but has no gradient, on purpose, and the rounding of a cast would look like a
// slope. Throws ExpressionError.
bool takes_values_out(const Program&);

// Returns a direction whose elements have either sign, no two alike, each 0.5 to 1 times as large
// as the element of x (as large as 1 where that is 0).
at::Tensor direction_like(const at::Tensor& x, std::uint64_t seed);

}  // namespace distgrad
