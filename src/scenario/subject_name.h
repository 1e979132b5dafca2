// Knows the forms of a subject's name. Source: command-line contract, "A subject is".
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

// Returns why `subject` names no subject, `unknown subject "torchnn"; did you mean "torch_nn"?`, or
// "" if it does.
std::string problem_with_subject(std::string_view subject);

}  // namespace distgrad
