#pragma once

#include <ATen/core/stack.h>

namespace distgrad {

// Throws c10::Error where these are the arguments of a division of integers, rounded towards 0, in
// which one quotient does not fit, as that of the smallest integer and -1: the processor ends the
// process for it.
void check_quotients(const torch::jit::Stack& arguments);

}  // namespace distgrad
