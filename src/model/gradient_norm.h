// Reads losses of the form squared_gradient_norm(LOSS): the squared norm of LOSS's gradients, for
// which backward runs twice. Only a whole loss has this form; it is no function of expressions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace distgrad {

// Returns the text of LOSS, or nullopt if the loss has another form. Throws std::invalid_argument
// if the loss begins with the form and continues after it.
std::optional<std::string> inner_of_gradient_norm(std::string_view loss);

}  // namespace distgrad
