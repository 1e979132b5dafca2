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
// Where the gradients differ, the last two steps repeat with Detail::kEveryRank if that asks for
// more rows, so that diagnosis knows every objective. Rows may be missing (a golden file has only
// the declared objective's); then `matches` has the objectives that the rows determine.
//
// `run` must have come back from every rank without error or skip. Without a run (--simulate,
// golden files) only the simulation's guards are compared, and the gradients hold only the truth.
// The tolerance is the scenario's; the file's `truth` counts if Case says that it applies.
//
// kLeftOut saves work if nobody asks which other objectives the gradients would be right under.
// `matches` and `truth_by_objective` then stay empty.
enum class OtherObjectives { kCompared, kLeftOut };

CaseComparison compare(const Case&, const SimulateRequest& asked, const Simulation&,
                       const DistributedRun* run,
                       OtherObjectives objectives = OtherObjectives::kCompared);

}  // namespace distgrad
