// Losses of the form squared_gradient_norm(LOSS): the squared norm of LOSS's gradients, for which
// backward runs twice. It is a form of the whole loss, and no function of expressions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace distgrad {

// LOSS, as it is written; nullopt for a loss of another form. Throws std::invalid_argument where
// the form begins the loss and is not the whole of it.
std::optional<std::string> inner_of_gradient_norm(std::string_view loss);

}  // namespace distgrad
