// Code of users may round where the simulation's operations do not: a sum that is scaled before and
// after it, a detour over a wider dtype, a product's gradient by division. Where the simulation is
// exact its bounds are 0, and such a function would be accused of the last bit of a right number.
#pragma once

#include <cstddef>
#include <string_view>

#include "model/run_result.h"

namespace distgrad {

// Whether the subject, or a part of it, is the user's code: not a built-in one in Python.
bool is_code_of_users(std::string_view subject);

// Roundings of the dtype, on a tensor's largest element over all ranks and losses, that users' code
// has room for: 64 in float64 and float32, 16 in float16, 8 in bfloat16.
double roundings_of_users(DType);

// The simulation with that added to its bounds, of gradients and steps; 64 times as much for the
// losses, in which terms cancel. Bounds that were not asked for stay absent. For a subject that is
// not the user's code the simulation as it is.
Simulation with_user_code_slack(const Simulation&, std::string_view subject, DType);

// What it adds to each bound of one gradient; 0 where it adds nothing.
double user_code_slack(const Simulation&, std::size_t input, std::string_view subject, DType);

}  // namespace distgrad
