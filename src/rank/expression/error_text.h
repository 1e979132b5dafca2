// Makes one line of torch's messages, which run over many.
#pragma once

#include <exception>
#include <string>

namespace distgrad {

// Returns the first sentence of what an operator threw, without the C++ stack.
std::string error_text(const std::exception&);

// Returns why TorchScript's front end found that arguments do not fit a schema, or "" if its report
// does not say.
std::string mismatch_text(const std::exception&);

}  // namespace distgrad
