// Objectives as case names and options spell them, and who means which.
#pragma once

#include <string>
#include <string_view>

#include "model/objective.h"

namespace distgrad {

// sum, mean, replicated, rank:1, dp=mean+tp=replicated. Throws UserError.
Objective parse_objective_text(std::string_view text);

// One line: the choices and who means each.
std::string objective_choices();

}  // namespace distgrad
