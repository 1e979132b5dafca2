// Gives users' code room to round where the simulation's operations do not: a sum that is scaled
// before and after it, a detour over a wider dtype, a product's gradient by division. If the
// simulation is exact its bounds are 0, and such a function would be blamed for a last bit.
#pragma once

#include <cstddef>
#include <string_view>

#include "model/run_result.h"

namespace distgrad {

// Returns a gradient's largest magnitude under every objective asked for: terms may cancel in one.
double largest_gradient(const Simulation&, std::size_t input);

// Returns true if the subject, or a part of it, is users' code; built-in ones in Python are not.
bool is_code_of_users(std::string_view subject);

// Returns how many roundings of the dtype users' code may make, relative to a tensor's largest
// element over all ranks and losses: 64 in float64 and float32, 16 in float16, 8 in bfloat16.
double roundings_of_users(DType);

// Adds that room to the bounds of gradients and steps, and 64 times as much to those of losses, in
// which terms cancel. Bounds that were not asked for stay absent. A subject that is not users' code
// gets the simulation unchanged.
Simulation with_user_code_slack(const Simulation&, std::string_view subject, DType);

// Returns what it adds to each bound of one gradient, or 0.
double user_code_slack(const Simulation&, std::size_t input, std::string_view subject, DType);

}  // namespace distgrad
