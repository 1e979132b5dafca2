// What only another run of the ranks can show: that two runs differ, and that a contiguous
// cotangent makes a wrong gradient right.
#pragma once

#include <functional>
#include <optional>

#include "diagnose/replayer.h"

namespace distgrad {

// Runs the case once more on real ranks, with this program instead of its own. Nothing where that
// fails. May be empty.
using Rerun = std::function<std::optional<DistributedRun>(const Program&)>;

// The same program again gives other gradients, by more than rounding may.
std::optional<Finding> nondeterministic_finding(const Evidence&, const Replayer&, const Rerun&);

// The gradients become right where a collective's operand and cotangent are made contiguous, and
// nothing else is changed. The first step that does it in the order of backward is named. Runs the
// ranks once for each collective, but no more than a few times.
std::optional<Finding> contiguity_finding(const Evidence&, const Replayer&, const Rerun&);

}  // namespace distgrad
