// Measures how hard a scenario is to read, which every reduction must lower.
#pragma once

#include <array>
#include <cstdint>

#include "fuzz/document.h"

namespace distgrad {

// Weights compare from the front: collectives; ranks (and further cases); inputs and steps;
// options; the size of expressions; elements; how odd the numbers are; characters. Natural numbers
// end every chain of reductions.
using Weight = std::array<std::int64_t, 8>;

Weight weight_of(const Document&);

// Orders 0, 1, 2, other small integers, negative ones, large ones, fractions.
std::int64_t oddness_of(double number);

}  // namespace distgrad
