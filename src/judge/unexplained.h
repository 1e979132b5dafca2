// What is reported of a difference that is neither measured nor recognised.
#pragma once

#include <string>

#include "judge/evidence.h"

namespace distgrad {

// `why`: a sentence on what was tried, and where to maps.
Finding unexplained_finding(const Evidence&, const std::string& why);

}  // namespace distgrad
