// The ATen operators that may run, found and matched by TorchScript's own rules.
#pragma once

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <memory>
#include <string>
#include <vector>

namespace distgrad {

using Overloads = std::vector<std::shared_ptr<torch::jit::Operator>>;

// The overloads of "aten::sum" that are pure tensor functions, in TorchScript's order: no mutable
// argument, no out=, no random numbers, no device or named dimension that must be given, and a
// tensor among arguments or results (torch.sqrt(2) is no Python). `method`: those that have a
// `self`.
const Overloads& pure_overloads(const std::string& qualified_name, bool method);

// Whether torch has an operator of that name at all.
bool exists_in_torch(const std::string& qualified_name);

// Whether one overload is pure; pure_overloads() asks it, and it is asked again of each operator
// about to run.
bool is_pure(const torch::jit::Operator&);

}  // namespace distgrad
