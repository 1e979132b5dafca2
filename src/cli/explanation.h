// One case in full: its program simulated once more with every value and cotangent, beside the
// cotangents that the ranks' own backward was observed to give, and the first place where they
// part.
#pragma once

#include "cli/verify.h"
#include "report/explain.h"

namespace distgrad {

// Costs a simulation and, where the gradients differ, another run of the ranks and one more
// simulation.
Explanation explanation_of(const Conclusion&);

}  // namespace distgrad
