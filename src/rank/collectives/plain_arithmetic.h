// Computes every collective and its adjoint in hand-written loops over plain numbers, without
// torch. Tests and `fuzz --simulate` check the simulation, the native collectives and their
// backwards against it.
#pragma once

#include <vector>

#include "rank/collectives/collective.h"

namespace distgrad {

// Holds a row-major array of doubles.
struct Plain {
  Shape shape;
  std::vector<double> values;
};

Plain plain_of(const at::Tensor& tensor);  // on any device, of any floating dtype

// Takes operands and returns outputs by rank of the group. The options must fit the operands.
std::vector<Plain> plain_outputs(const Call& call, const std::vector<Plain>& operands);
// Returns the operands' cotangents, given those of the outputs.
std::vector<Plain> plain_adjoint(const Call& call, const std::vector<Plain>& operands,
                                 const std::vector<Plain>& cotangents);

}  // namespace distgrad
