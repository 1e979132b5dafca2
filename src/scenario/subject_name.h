// The forms a subject's name can have. Source: command-line contract, "A subject is".
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

// Why `subject` names no subject: `unknown subject "torchnn"; did you mean "torch_nn"?`; empty
// where it does.
std::string problem_with_subject(std::string_view subject);

}  // namespace distgrad
