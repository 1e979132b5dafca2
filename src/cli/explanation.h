// How one case is told: its program simulated once more with every value and cotangent, beside a
// replay of what the ranks' backward did, and the first place where the two part.
#pragma once

#include "cli/verify.h"
#include "report/explain.h"

namespace distgrad {

// Costs two simulations, and a diagnosis where the gradients differ.
Explanation explanation_of(const Conclusion&);

}  // namespace distgrad
