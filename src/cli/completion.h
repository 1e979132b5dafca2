// Makes what a shell needs to complete distgrad's command lines, from the commands' own options.
#pragma once

#include <string>

namespace distgrad {

// Returns a script for bash 4 or newer, to be sourced. It asks distgrad itself only for the cases
// of a file.
std::string bash_completion();

}  // namespace distgrad
