// Torch's messages, which run over many lines, made one.
#pragma once

#include <exception>
#include <string>

namespace distgrad {

// What an operator threw: the first sentence, without C++ stack.
std::string error_text(const std::exception&);

// Why TorchScript's front end found that arguments do not fit a schema; empty where its report does
// not say.
std::string mismatch_text(const std::exception&);

}  // namespace distgrad
