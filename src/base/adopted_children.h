// Ends processes whose parent has ended, such as a daemon that code under test started in a session
// of its own. They become children of the nearest ancestor that asked for them.
#pragma once

#include <sys/types.h>

#include <set>

namespace distgrad {

// Makes this process adopt all orphans among its descendants from now on.
void adopt_orphans();

std::set<pid_t> current_children();

// Kills all children but these and waits for them, and then for the orphans that they leave.
void end_children_but(const std::set<pid_t>& kept);

}  // namespace distgrad
