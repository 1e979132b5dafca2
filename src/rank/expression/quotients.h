#pragma once

#include <ATen/core/stack.h>

namespace distgrad {

// Throws c10::Error if these arguments divide integers, rounding towards 0, and some quotient does
// not fit, as that of the smallest integer and -1: the processor ends the process for that.
void check_quotients(const torch::jit::Stack& arguments);

}  // namespace distgrad
