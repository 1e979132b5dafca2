// Names of inputs, steps, groups and mesh axes: Python identifiers that an expression can use.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace distgrad {

// Why `name` cannot be bound: "is a Python keyword"; empty where it can.
std::string why_not_a_name(std::string_view name);

// The identifiers that cannot be bound.
std::vector<std::string> reserved_names();

}  // namespace distgrad
