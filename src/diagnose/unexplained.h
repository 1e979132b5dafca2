// What is said of a difference that no hypothesis reproduces.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "diagnose/evidence.h"

namespace distgrad {

// The collective steps in program order, each with the inputs (indices of the gradients) that it
// bears on.
using Bearing = std::vector<std::pair<const Step*, std::vector<std::size_t>>>;

Finding unexplained_finding(const Evidence&, const Bearing&);

}  // namespace distgrad
