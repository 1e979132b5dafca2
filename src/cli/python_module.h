// Runs the commands that are Python modules of ours, in the user's interpreter.
#pragma once

#include <string>

#include "cli/command.h"

namespace distgrad {

// Runs `python -m MODULE ARGUMENTS...` with the interpreter that `python` names, or that is found.
// With `joins` it becomes that program, since this process is then a launcher's rank.
ExitCode run_python_module(const std::string& python, const std::string& module,
                           const Arguments& arguments, bool joins);

}  // namespace distgrad
