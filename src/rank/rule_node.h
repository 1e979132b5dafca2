// Makes one collective call in the simulation whose backward is a rule instead of the truth. It is
// one graph node over all ranks.
#pragma once

#include <vector>

#include "rank/collectives/collective.h"
#include "rank/rules/rule.h"

namespace distgrad {

// Returns the outputs, indexed by rank. `spec` and `rule` must outlive the backward pass.
std::vector<at::Tensor> call_with_rule(const Call&, const Rule& rule,
                                       const std::vector<at::Tensor>& operands);

}  // namespace distgrad
