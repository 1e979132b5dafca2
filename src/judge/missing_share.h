// Checks whether the gradients lack some losses' share, by arithmetic on what each rank's loss
// contributes. It serves programs whose collective calls cannot be looked into (users' code).
#pragma once

#include <optional>

#include "judge/evidence.h"
#include "judge/machine.h"

namespace distgrad {

// Reports gradients that hold only what each rank's own loss contributes, or that lack one rank's.
std::optional<Finding> missing_share_finding(Machine&, const Evidence&);

}  // namespace distgrad
