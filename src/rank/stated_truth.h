// Evaluates what a scenario states beside its program: the same computation on a single device, and
// gradients in closed form.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "model/program.h"
#include "model/run_result.h"
#include "rank/leaf.h"

namespace distgrad {

struct SingleDeviceForward {
  std::vector<Leaf> leaves;  // hold the inputs' whole values
  at::Tensor loss;           // a float64 scalar, computed from them
};

// Runs the forward of program.single_device, which must be there. Throws InvalidAt.
SingleDeviceForward run_single_device(const Program&);

// Returns the gradient that the file states for an input: one part per rank if the input is local,
// else one part. Returns nullopt if the program has no such input. `leaves` are all inputs'. Throws
// InvalidAt.
std::optional<Gradient> stated_gradient(const Program&, const Program::Truth&,
                                        const std::vector<Leaf>& leaves);

}  // namespace distgrad
