// What a scenario states beside its program: the same on a single device, and gradients in closed
// form.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "model/program.h"
#include "model/run_result.h"
#include "rank/leaf.h"

namespace distgrad {

struct SingleDeviceForward {
  std::vector<Leaf> leaves;  // of the inputs' whole values
  at::Tensor loss;           // a float64 scalar, computed from them
};

// Runs the forward of program.single_device, which is there. Throws InvalidAt.
SingleDeviceForward run_single_device(const Program&);

// What the file states for an input's gradient: a part for each rank where the input is local, else
// one; nullopt where the program has no such input. `leaves` are all inputs'. Throws InvalidAt.
std::optional<Gradient> stated_gradient(const Program&, const Program::Truth&,
                                        const std::vector<Leaf>& leaves);

}  // namespace distgrad
