// What a reduction to one rank leaves in the other ranks' buffers, handed out as a gradient.
#pragma once

#include <optional>

#include "diagnose/replayer.h"

namespace distgrad {

// The root of a broadcast has the right gradient; on the ranks off root, where it is zero, each
// element is the sum of some ranks' cotangents, those next to each other in the group's order, as a
// ring or a tree adds them up. Asked of local inputs alone, in dtypes that are fine enough to tell
// such sums apart, and in groups of up to eight.
std::optional<Finding> leftovers_finding(const Evidence&, const Replayer&);

}  // namespace distgrad
