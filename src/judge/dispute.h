// Programs that call the user's own code: where derivative and intent differ, as at a detach, a
// straight-through trick or a kink, nobody is accused. What stands here tells such a difference
// from a mistake.
#pragma once

#include <string>

#include "model/comparison.h"
#include "model/run_result.h"
#include "model/scenario.h"

namespace distgrad {

// Why the observed gradients, though not the truth, are no mistake, with the element: they are the
// truth wherever that is known (not at a kink), or that of the program whose cuts
// (Simulation::held) stay what they are. Empty where that is not so.
std::string dispute(const Case&, const SimulateRequest& asked, const Simulation&,
                    const DistributedRun&, const CaseComparison&);

// What a mistake is held against: the gradients with the cuts held, which are known of the declared
// objective alone, and nothing where the truth is not known.
struct IntendedTruth {
  SimulateRequest asked;
  Simulation simulation;
};
IntendedTruth as_intended(SimulateRequest, Simulation);

// Whether the difference may be a matter of rounding: of a dtype narrower than float64, with a
// bound that was estimated and not proven, as it is for all programs that call code.
bool could_be_rounding(const Case&, const CaseComparison&);

// For a case that matches in float64.
std::string dispute_about_rounding(DType, const CaseComparison&);

}  // namespace distgrad
