// Runs the oracle: one float64 autograd graph over N virtual ranks. It is simple on purpose: it
// uses no streams, no in-place tricks and no hand-written adjoint (unless a rule is replayed).
#pragma once

#include <vector>

#include "model/run_result.h"
#include "rank/simulated_call.h"

namespace distgrad {

// Never throws for a bad program, which sets Simulation::invalid. Single-threaded.
Simulation simulate(const SimulateRequest&);

// Does the same, and adds every call to `calls`, in the order of the steps and of the groups'
// lists.
Simulation simulate_with_calls(const SimulateRequest&, std::vector<SimulatedCall>& calls);

}  // namespace distgrad
