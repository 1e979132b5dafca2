// Checks names of inputs, steps, groups and mesh axes: Python identifiers that an expression can
// use.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace distgrad {

// Returns why `name` cannot be bound, "is a Python keyword", or "" if it can.
std::string why_not_a_name(std::string_view name);

// Returns the identifiers that cannot be bound.
std::vector<std::string> reserved_names();

}  // namespace distgrad
