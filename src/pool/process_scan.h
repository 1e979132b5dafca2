// Finds, for tests, which processes of this test are alive, by a variable in the environment that
// they inherit.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace distgrad {

// Marks this process's environment with a unique value and returns it.
std::string mark_environment();

// Returns living processes (zombies are dead) that were started with the mark. A process shows the
// environment that it was exec'd with, so this one is not among them.
std::vector<pid_t> marked_processes(const std::string& mark);

// Returns those whose name (prctl) begins with `name`.
std::vector<pid_t> marked_processes(const std::string& mark, const std::string& name);

// Waits up to 5 s for them to be gone. Returns false if some are left.
bool all_gone(const std::string& mark);

}  // namespace distgrad
