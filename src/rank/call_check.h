// Checks a simulated collective against plain arithmetic, so that `distgrad fuzz --simulate` tests
// the simulation's own collectives.
#pragma once

#include <string>

#include "rank/simulator.h"

namespace distgrad {

// Returns a line that says where outputs or operand cotangents differ, by more than a few roundings
// of what was added up, from what loops over plain numbers (rank/collectives/plain_arithmetic.h)
// make of the operands and the output cotangents. Returns an empty string if they agree, if the
// call is not in float64, or if an operand of min or max has a NaN.
std::string difference_from_arithmetic(const SimulatedCall&);

}  // namespace distgrad
