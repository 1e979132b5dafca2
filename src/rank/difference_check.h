// What the check of the simulation by finite differences needs to know of a program, and where it
// looks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/program.h"

namespace distgrad {

// Whether an expression takes a value out of the graph, or casts it. Such a value moves with the
// inputs and has no gradient, which is meant and no mistake of anybody; and the rounding of a cast
// would be taken for a slope. Throws ExpressionError.
bool takes_values_out(const Program&);

// Of either sign, 0.5 to 1 times as large as each element of x (where that is 0, as large as 1),
// and no two alike.
at::Tensor direction_like(const at::Tensor& x, std::uint64_t seed);

}  // namespace distgrad
