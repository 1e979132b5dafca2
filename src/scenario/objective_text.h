// Reads objectives as case names and options spell them, and says who means which.
#pragma once

#include <string>
#include <string_view>

#include "model/objective.h"

namespace distgrad {

// Reads sum, mean, replicated, rank:1 or dp=mean+tp=replicated. Throws UserError.
Objective parse_objective_text(std::string_view text);

// Returns, in one line, the choices and who means each.
std::string objective_choices();

}  // namespace distgrad
