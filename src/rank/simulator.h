// The oracle: one float64 autograd graph over N virtual ranks. Dumb on purpose: no streams, no in-place tricks, no
// hand-written adjoint (unless a rule is replayed).
#pragma once

#include "model/run_result.h"

namespace distgrad {

// Never throws for a bad program: that is Simulation::invalid. Single-threaded.
Simulation simulate(const SimulateRequest&);

}  // namespace distgrad
