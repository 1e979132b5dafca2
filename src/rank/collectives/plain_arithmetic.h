// Every collective and its adjoint in loops over plain numbers, written by hand: nothing of torch
// computes here. What the simulation, the native collectives and their backwards are checked
// against, in tests and by `fuzz --simulate`.
#pragma once

#include <vector>

#include "rank/collectives/collective.h"

namespace distgrad {

// A row-major array of doubles.
struct Plain {
  Shape shape;
  std::vector<double> values;
};

Plain plain_of(const at::Tensor& tensor);  // on any device, of any floating dtype

// By rank of the group in, by rank out. The options must fit the operands.
std::vector<Plain> plain_outputs(const Call& call, const std::vector<Plain>& operands);
// The cotangents of the operands, given those of the outputs.
std::vector<Plain> plain_adjoint(const Call& call, const std::vector<Plain>& operands,
                                 const std::vector<Plain>& cotangents);

}  // namespace distgrad
