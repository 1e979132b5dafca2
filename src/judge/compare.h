// Compares one case's distributed run with its simulation, element by element, within bounds.
#pragma once

#include <optional>

#include "model/comparison.h"
#include "model/run_result.h"
#include "model/scenario.h"

namespace distgrad {

// The flow of one case:
//   asked.program = the case's program; asked.weights = weights_to_ask(program, objective);
//   simulation = simulate(asked);                    // simulation.invalid: a user's error
//   check_replicated(asked, objective, simulation)   // likewise
//   compare(case, asked, simulation, run)
// and where the gradients differ, the same once more with Detail::kEveryRank if that asks for more
// rows, so that diagnosis knows every objective. Rows may lack (a golden file has the declared
// objective's alone): then `matches` has the objectives that the rows determine.
//
// `run` must have come back from every rank without error or skip; without a run (--simulate,
// golden files) only what guards the simulation is compared, and the gradients hold the truth
// alone. The tolerance is the scenario's; the file's `truth` counts as Case says it applies.
//
// Where nobody asks which other objectives the gradients would be right under, these need not be
// worked out: then `matches` and `truth_by_objective` stay empty.
enum class OtherObjectives { kCompared, kLeftOut };

CaseComparison compare(const Case&, const SimulateRequest& asked, const Simulation&,
                       const DistributedRun* run,
                       OtherObjectives objectives = OtherObjectives::kCompared);

}  // namespace distgrad
