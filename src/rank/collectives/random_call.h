// Calls of every collective, op and option on small data, for tests: what a test must run through.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "rank/collectives/collective.h"

namespace distgrad::testing {

struct Sample {
  std::string name;
  CollectiveCall spec;
  std::vector<at::Tensor> operands;  // by rank
};

// Every collective × op, with dims, splits, roots and uneven shapes, for a group of `size`.
// Operands are integers that differ by rank and element (their products stay exact), with a zero
// and a tie among them where `with_zeros_and_ties`.
std::vector<Sample> samples(int size, at::ScalarType type, bool with_zeros_and_ties);

// Cotangents for the outputs: integers that differ by rank and element; non-contiguous where the
// shape allows.
std::vector<at::Tensor> cotangents_for(const std::vector<at::Tensor>& outputs);

}  // namespace distgrad::testing
