// What a finding says was measured, and what is right: formulas, numbers and matrices.
#pragma once

#include "judge/blocks.h"
#include "model/report.h"

namespace distgrad {

// Its matrices come from the simulator and the numbers of the blocks where the measurement is not
// by element itself.
Measured measured_field(Machine&, const Measurement&, const Blocks& measured, const Blocks& right);

}  // namespace distgrad
