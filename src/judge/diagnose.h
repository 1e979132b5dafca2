// Says why a case is not a match: findings, the most specific first. It judges each stage of the
// backward on what arrived there: every collective call, what lies between the calls, and what
// happens to the gradients after backward. So it finds several mistakes at once.
#pragma once

#include <vector>

#include "judge/evidence.h"
#include "judge/machine.h"

namespace distgrad {

// Returns an empty list for a case that is right, or whose truth is undecided. `machine` may be
// null if nothing ran; then only the comparison is reported.
std::vector<Finding> diagnose(const Evidence&, Machine* machine);

}  // namespace distgrad
