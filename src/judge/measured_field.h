// Fills in what a finding says was measured and what is right: formulas, numbers and matrices.
#pragma once

#include "judge/blocks.h"
#include "model/report.h"

namespace distgrad {

// Unless measured by element, the matrices come from the simulator and the blocks' numbers.
Measured measured_field(Machine&, const Measurement&, const Blocks& measured, const Blocks& right);

}  // namespace distgrad
