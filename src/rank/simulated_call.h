// One collective step in the simulation: ordinary tensor code over all virtual ranks, group by
// group.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "model/program.h"
#include "rules/rule.h"

namespace distgrad {

// What one group got and gave in a collective step, by rank of the group. Cotangents are those of
// the first objective; undefined: no loss that counts depends on it.
struct SimulatedCall {
  const Step* step = nullptr;  // of the request's program
  std::vector<at::Tensor> operands, outputs;
  std::vector<at::Tensor> operand_cotangents, output_cotangents;
};

// Outputs by rank of the world. `rule`: the backward that is supposed; null for the truth. `calls`:
// where to tell of the groups' calls; may be null. Throws InvalidAt.
std::vector<at::Tensor> simulate_step(const Program&, const Step&,
                                      const std::vector<at::Tensor>& operands, const Rule* rule,
                                      std::vector<SimulatedCall>* calls);

// Why the gradients of such a call are not judged: "a NaN among the operands of max"; empty where
// they are.
std::string why_forward_only(const CollectiveCall&, const std::vector<at::Tensor>& operands);

}  // namespace distgrad
