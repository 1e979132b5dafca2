// How complicated a scenario is to read: what every reduction must make less.
#pragma once

#include <array>
#include <cstdint>

#include "fuzz/document.h"

namespace distgrad {

// Compared from the front: collectives; ranks (and further cases); inputs and steps; options; the
// size of expressions; elements; how odd the numbers are; characters. Natural numbers, so that no
// chain of reductions goes on for ever.
using Weight = std::array<std::int64_t, 8>;

Weight weight_of(const Document&);

// 0, 1, 2, other small integers, negative ones, large ones, fractions: in this order.
std::int64_t oddness_of(double number);

}  // namespace distgrad
