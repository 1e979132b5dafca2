// A simulated collective against plain arithmetic: what `distgrad fuzz --simulate` tells of the
// simulation's own collectives.
#pragma once

#include <string>

#include "rank/simulator.h"

namespace distgrad {

// Empty where outputs and operands' cotangents are what loops over plain numbers
// (collectives/plain_arithmetic.h) make of the operands and the outputs' cotangents, within a few
// roundings of what was added up. Else where they differ, a line. Nothing is asked of calls in
// another dtype than float64, nor of a NaN among the operands of min and max.
std::string difference_from_arithmetic(const SimulatedCall&);

}  // namespace distgrad
