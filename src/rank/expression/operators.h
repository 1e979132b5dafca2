// Finds the ATen operators that may run, by TorchScript's own matching.
#pragma once

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <memory>
#include <string>
#include <vector>

namespace distgrad {

using Overloads = std::vector<std::shared_ptr<torch::jit::Operator>>;

// Returns the overloads of, say, "aten::sum" that are pure tensor functions, in TorchScript's
// order: no mutable argument, no out=, no random numbers, no device or named dimension that must be
// given, and a tensor among arguments or results (torch.sqrt(2) is no Python). With `method` only
// those that have a `self`.
const Overloads& pure_overloads(const std::string& qualified_name, bool method);

// Returns true if torch has any operator of that name.
bool exists_in_torch(const std::string& qualified_name);

// Returns true if one overload is pure. pure_overloads() uses it, and each operator is checked
// again before it runs.
bool is_pure(const torch::jit::Operator&);

}  // namespace distgrad
