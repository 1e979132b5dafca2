// A program of ours that runs users' code, in this one's place: what that code does to it shows,
// and leaves nothing.
#pragma once

#include <string>
#include <vector>

#include "base/exit_code.h"

namespace distgrad {

// A program that works in `$DISTGRAD_FOLDER`, which is made and removed here, and writes to this
// process's output. Gets the signals that this process gets. What it leaves running ends, and so
// does the program itself where code under test has stopped it: the code is then that of a run that
// broke, with a line.
ExitCode run_watched(const std::vector<std::string>& command);

}  // namespace distgrad
