// Edits a program to ask something else with it.
#pragma once

#include <string>
#include <vector>

#include "model/program.h"

namespace distgrad {

// Returns `name` with as many '_' behind it as make it unlike any step, input or group.
std::string unused_name(const Program&, std::string name);

// Makes a local input with these values by rank.
Input local_input(std::string name, std::vector<Array> by_rank, bool requires_grad);

Array zeros(const Shape&);

}  // namespace distgrad
