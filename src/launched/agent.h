// A rank's process as rank 0 sees it: starts rank programs on its host as the hub says, one worker
// of each team, and carries between them and the hub what sockets and shared memory carry on one
// machine.
#pragma once

#include "launched/world.h"

namespace distgrad {

// Of a process that a launcher has started as a rank above 0: meets rank 0, serves it, and ends
// when it is told to, with the exit code that is rank 0's. Throws UserError, SystemError.
int follow(const LaunchedWorld& world);

// Rank 0's own agent, which the hub has started with the connection as kInheritedFd.
int be_agent();

// How long ranks wait for each other to come: DISTGRAD_LAUNCH_TIMEOUT, else this.
inline constexpr int kLaunchTimeoutS = 240;
int launch_timeout_s();

}  // namespace distgrad
