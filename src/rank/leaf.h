// Makes the leaves of the simulation's graph: the inputs in float64, and what each virtual rank
// sees.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/program.h"
#include "model/run_result.h"

namespace distgrad {

struct Leaf {
  const Input* input = nullptr;     // of the program
  std::vector<at::Tensor> leaves;   // one per rank, or a single one
  std::vector<at::Tensor> by_rank;  // what each rank holds
};

// If `by_rank` is true, every rank's own piece or copy is a leaf. Throws InvalidAt.
Leaf make_leaf(const Program&, const Input&, bool by_rank);

// Returns the leaves of inputs that require grad, in the program's order.
std::vector<at::Tensor> differentiable(const std::vector<Leaf>&);

// Returns the leaf's gradient; its parts begin at `first`.
Gradient gradient_of(const Leaf&, std::vector<at::Tensor>::const_iterator first);

// Returns the value of a float64 scalar. Does not use item(), which the error analysis takes for a
// decision that depends on the value.
double number(const at::Tensor& scalar);

}  // namespace distgrad
