// What a shell needs to complete distgrad's command lines, made of the commands' own options.
#pragma once

#include <string>

namespace distgrad {

// A script for bash 4 or newer, to be sourced. It asks distgrad itself only for the cases of a
// file.
std::string bash_completion();

}  // namespace distgrad
