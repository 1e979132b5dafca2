// Decides whether standard output is coloured.
#pragma once

#include "cli/run_options.h"

namespace distgrad {

// Under `auto` it is on a terminal that can show colours, unless NO_COLOR is set.
bool wants_color(Color);

}  // namespace distgrad
