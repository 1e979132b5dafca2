// Says where a run's time went.
#pragma once

#include <cstddef>
#include <string>

#include "model/report.h"

namespace distgrad {

// Lists the `count` cases that took longest, a line each, the longest first, below a heading. Cases
// that never ran are left out.
std::string durations_text(const Report&, std::size_t count);

}  // namespace distgrad
