// What a diagnosis changes of a program to ask something else with it.
#pragma once

#include <string>
#include <vector>

#include "model/program.h"

namespace distgrad {

// The name, with as many '_' behind it as no step, input or group has.
std::string unused_name(const Program&, std::string name);

// A local input with these values by rank.
Input local_input(std::string name, std::vector<Array> by_rank, bool requires_grad);

Array zeros(const Shape&);

}  // namespace distgrad
