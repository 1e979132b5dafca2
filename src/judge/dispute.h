// Judges programs that call users' code. Where derivative and intent differ there, as at a detach,
// a straight-through trick or a kink, nobody is blamed. This tells such a difference from a
// mistake.
#pragma once

#include <string>

#include "model/comparison.h"
#include "model/run_result.h"
#include "model/scenario.h"

namespace distgrad {

// Says why observed gradients that differ from the truth are no mistake, with the element: they
// equal the truth wherever that is known (not at a kink), or they equal the gradients of the
// program whose cuts stay constant (Simulation::held). Returns an empty string if neither holds.
std::string dispute(const Case&, const SimulateRequest& asked, const Simulation&,
                    const DistributedRun&, const CaseComparison&);

// Holds the truth that mistakes are measured against: the gradients with the cuts held, which are
// known for the declared objective alone, and infinite bounds where the truth is unknown.
struct IntendedTruth {
  SimulateRequest asked;
  Simulation simulation;
};
IntendedTruth as_intended(SimulateRequest, Simulation);

// Returns true if the difference may be rounding: the case's dtype, or one that the code casts to,
// is narrower than float64, and the bound, which is estimated and not proven, is not exceeded many
// times.
bool could_be_rounding(const Case&, const Simulation&, const CaseComparison&);

// Returns true if an estimated bound is so large that a wrong gradient may lie within it.
bool bounds_may_hide_mistakes(const Case&, const SimulateRequest& asked, const Simulation&);

// Says so of a case that is right in float64.
std::string dispute_about_rounding(const Case&, const Simulation&, const CaseComparison&);

}  // namespace distgrad
