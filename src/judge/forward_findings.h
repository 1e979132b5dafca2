// Reports what is wrong before any backward: the file's own figures, its program, or a forward
// value.
#pragma once

#include <optional>

#include "judge/evidence.h"

namespace distgrad {

std::optional<Finding> truth_finding(const Evidence&);
std::optional<Finding> program_finding(const Evidence&);
std::optional<Finding> forward_finding(const Evidence&);

}  // namespace distgrad
