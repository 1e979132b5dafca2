// Runs a program of ours with users' code in place of this one, so that what that code does to it
// shows, and leaves nothing behind.
#pragma once

#include <string>
#include <vector>

#include "base/exit_code.h"

namespace distgrad {

// The program works in `$DISTGRAD_FOLDER`, which is made and removed here, and writes to this
// process's output. It gets the signals that this process gets. What it leaves running is ended. So
// is the program itself if code under test has stopped it; the code is then that of a broken run,
// with a line.
ExitCode run_watched(const std::vector<std::string>& command);

}  // namespace distgrad
