// Why a case is not a match: findings, the most specific first. Each stage of the backward is
// judged on what arrived at it: every collective call, what lies between the calls, what is done to
// the gradients after backward. So any number of mistakes is found, each by itself.
#pragma once

#include <vector>

#include "judge/evidence.h"
#include "judge/machine.h"

namespace distgrad {

// Empty for a case that is right in everything, or whose truth is not decided. `machine` may be
// null where nothing ran: then only what was compared is reported.
std::vector<Finding> diagnose(const Evidence&, Machine* machine);

}  // namespace distgrad
