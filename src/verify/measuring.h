// Measures the truth of a program with calls of code that has no `simulate`. The ranks measure it,
// as finite differences of their own forward run, in place of a simulator.
#pragma once

#include "model/run_result.h"
#include "model/scenario.h"
#include "pool/job.h"

namespace distgrad {

// Measuring takes many forward runs, so it may take this many times a case's time.
inline constexpr double kMeasuringTakes = 4;

// Collectives beside the calls run by `reference` over gloo on the CPU, whatever runs them in the
// case.
RunRequest measuring_request(const Case&, const SimulateRequest&);

// Returns what rank 0 measured, as a simulation's result.
SimulationRun measured(DistributedRun);

// Returns true if the request needs a simulator: it has rules, a leaf for each rank, or cotangents.
bool is_replay(const SimulateRequest&);

}  // namespace distgrad
