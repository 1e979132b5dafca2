// What only another run of the ranks can show: that two runs differ, and that other memory of a
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
// nothing else is changed: `contiguity`, or `stale-or-aliased` where copies that lie in memory as
// they did do it, too. The first such step in the order of backward is named. Runs the ranks once
// for each collective and once more, but no more than a few times.
std::optional<Finding> memory_finding(const Evidence&, const Replayer&, const Rerun&);

}  // namespace distgrad
