// Represents a rank's process to rank 0. It starts rank programs on its host as the hub says, with
// one worker of each team, and carries between them and the hub what goes through sockets and
// shared memory on one machine.
#pragma once

#include "launched/world.h"

namespace distgrad {

// Serves rank 0 from a process that a launcher started as a rank above 0. Ends when rank 0 says so
// and returns rank 0's exit code. Throws UserError, SystemError.
int follow(const LaunchedWorld& world);

// Serves as rank 0's own agent, which the hub has started with the connection as kInheritedFd.
int be_agent();

}  // namespace distgrad
