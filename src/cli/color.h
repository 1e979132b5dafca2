// Whether standard output is to be coloured.
#pragma once

#include "cli/run_options.h"

namespace distgrad {

// Under `auto`: a terminal that can, unless NO_COLOR is set.
bool wants_color(Color);

}  // namespace distgrad
