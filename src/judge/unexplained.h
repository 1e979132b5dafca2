// Reports a difference that was neither measured nor recognised.
#pragma once

#include <string>

#include "judge/evidence.h"

namespace distgrad {

// `why` is a sentence that says what was tried.
Finding unexplained_finding(const Evidence&, const std::string& why);

}  // namespace distgrad
