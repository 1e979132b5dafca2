// Simulates one collective step: ordinary tensor code over all virtual ranks, group by group.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "model/program.h"
#include "rank/rules/rule.h"

namespace distgrad {

// Holds what one group received and returned in a collective step, indexed by rank of the group.
// Cotangents are those of the first objective; undefined if no loss that counts depends on the
// tensor.
struct SimulatedCall {
  const Step* step = nullptr;  // of the request's program
  std::vector<at::Tensor> operands, outputs;
  std::vector<at::Tensor> operand_cotangents, output_cotangents;
};

// Returns outputs indexed by rank of the world. `rule` is the backward to assume; null means the
// truth. The groups' calls are added to `calls` unless it is null. Throws InvalidAt.
std::vector<at::Tensor> simulate_step(const Program&, const Step&,
                                      const std::vector<at::Tensor>& operands, const Rule* rule,
                                      std::vector<SimulatedCall>* calls);

// Returns why the gradients of such a call are not judged, "a NaN among the operands of max"; empty
// if they are.
std::string why_forward_only(const CollectiveCall&, const std::vector<at::Tensor>& operands);

}  // namespace distgrad
