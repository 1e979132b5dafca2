// Every collective and its adjoint in loops over plain numbers, for tests: nothing of torch computes here.
#pragma once

#include <vector>

#include "collectives/collective.h"

namespace distgrad::testing {

// A row-major array of doubles.
struct Plain {
  Shape shape;
  std::vector<double> values;
};

Plain plain_of(const at::Tensor& tensor);  // on any device, of any floating dtype

// By rank of the group in, by rank out. The options must fit the operands.
std::vector<Plain> plain_outputs(const Call& call, const std::vector<Plain>& operands);
// The cotangents of the operands, given those of the outputs.
std::vector<Plain> plain_adjoint(const Call& call, const std::vector<Plain>& operands, const std::vector<Plain>& cotangents);

}  // namespace distgrad::testing
