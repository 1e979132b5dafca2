// The oracle: one float64 autograd graph over N virtual ranks. Dumb on purpose: no streams, no in-place tricks, no
// hand-written adjoint (unless a rule is replayed).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/run_result.h"

namespace distgrad {

// Never throws for a bad program: that is Simulation::invalid. Single-threaded.
Simulation simulate(const SimulateRequest&);

// What one group got and gave in a collective step, by rank of the group. Cotangents are those of the first objective;
// undefined: no loss that counts depends on it.
struct SimulatedCall {
  const Step* step = nullptr;  // of the request's program
  std::vector<at::Tensor> operands, outputs;
  std::vector<at::Tensor> operand_cotangents, output_cotangents;
};

// The same, and tells of every call, in the order of the steps and of the groups' lists.
Simulation simulate_with_calls(const SimulateRequest&, std::vector<SimulatedCall>& calls);

}  // namespace distgrad
