// Lists calls of every collective, op and option on small data, for tests to run through.
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

// Returns every collective × op, with dims, splits, roots and uneven shapes, for a group of `size`.
// Operands are integers that differ by rank and element, whose products stay exact;
// `with_zeros_and_ties` puts zeros and a tie among them.
std::vector<Sample> samples(int size, at::ScalarType type, bool with_zeros_and_ties);

// Returns integer cotangents that differ by rank and element, non-contiguous if the shape allows.
std::vector<at::Tensor> cotangents_for(const std::vector<at::Tensor>& outputs);

}  // namespace distgrad::testing
