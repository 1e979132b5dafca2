// Whether what is missing is some losses' share of the gradients: arithmetic on what each rank's
// loss contributes by itself, for programs in which no collective call can be looked into (code of
// users).
#pragma once

#include <optional>

#include "judge/evidence.h"
#include "judge/machine.h"

namespace distgrad {

// Only what each rank's own loss contributes is there, or one rank's loss contributes nothing.
std::optional<Finding> missing_share_finding(Machine&, const Evidence&);

}  // namespace distgrad
