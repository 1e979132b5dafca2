// The truth of a program that calls code which says nothing of what it means for all ranks at once:
// it is asked of the ranks, as finite differences of their own forward run, and not of a simulator.
#pragma once

#include "model/run_result.h"
#include "model/scenario.h"
#include "pool/job.h"

namespace distgrad {

// Many forward runs instead of one: so many times a case's time may they take.
inline constexpr double kMeasuringTakes = 4;

// Collectives beside the calls are run by `reference` over gloo on the CPU, whoever runs them in
// the case.
RunRequest measuring_request(const Case&, const SimulateRequest&);

// What rank 0 measured, as a simulation's result.
SimulationRun measured(DistributedRun);

// Whether this asks for what only a simulator can do: exchanged rules, a leaf for each rank.
bool is_replay(const SimulateRequest&);

}  // namespace distgrad
