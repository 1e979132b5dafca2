// Explains one case in full. It simulates the program once more with every value and cotangent,
// beside the cotangents that the ranks' own backward was observed to give, and finds the first
// place where they part.
#pragma once

#include "report/explain.h"
#include "verify/verify.h"

namespace distgrad {

// Costs a simulation and, if the gradients differ, another run of the ranks and one more
// simulation.
Explanation explanation_of(const Conclusion&);

}  // namespace distgrad
