// What a constant factor between observed and reference gradients probably is.
#pragma once

#include <string>
#include <vector>

#include "dumps/parameter.h"

namespace distgrad::dumps {

struct NamedFactor {
  double value = 1;
  bool known = false;  // one that a mistake makes: N, an axis' size, their inverses, a power of
                       // two, a small ratio, -1
  std::string text;    // "1/4 of the reference (1/N)"
};

// `precision`: how far, relatively, the measured factor may lie off.
NamedFactor name_factor(double measured, int world_size, const std::vector<AxisGroups>& axes,
                        double precision);

}  // namespace distgrad::dumps
