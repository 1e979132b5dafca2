// For tests: which processes of this test are alive, known by a variable in the environment that
// they inherit.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace distgrad {

// Marks this process's environment with a value of its own and returns it.
std::string mark_environment();

// Living processes (zombies are dead) that were started with the mark. A process shows the
// environment that it was exec'd with, so this one is not among them.
std::vector<pid_t> marked_processes(const std::string& mark);

// The same, of those whose name (prctl) begins so.
std::vector<pid_t> marked_processes(const std::string& mark, const std::string& name);

// Waits up to 5 s for them to be gone; false if some are left.
bool all_gone(const std::string& mark);

}  // namespace distgrad
