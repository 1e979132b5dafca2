// Processes whose parent has ended, such as a daemon that code under test started in a session of
// its own. They become children of the nearest ancestor that asked for it, and are ended by it.
#pragma once

#include <sys/types.h>

#include <set>

namespace distgrad {

// From now on orphans among this process's descendants become its children.
void adopt_orphans();

std::set<pid_t> current_children();

// Kills all children but these and waits for them, and for what they leave behind in turn.
void end_children_but(const std::set<pid_t>& kept);

}  // namespace distgrad
