// Looks at a process from outside: whether it runs, sleeps or is stopped, how long it waited for a
// core, and where its Python code is.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace distgrad {

// Returns the state in /proc: 'R', 'S', 'D', 'T', 'Z', ...; 0 if there is no such process.
char process_state(pid_t);

// Returns "asleep", "busy" or "stopped", or "" if unknown.
std::string state_text(char state);

// Returns the time in which its first thread could have run and got no core.
std::int64_t waited_for_core_ns(pid_t);

// Finds the innermost line of the user's code in what a process writes at SIGUSR1 (Python's
// faulthandler): "loss.py:41 in f: time.sleep(1000)". The last part is there if the file can be
// read.
std::string place_in_stack(const std::string& stack);

// Asks a rank in Python for its stack, which it writes to its output file, and waits a moment.
// Returns "" if none comes, as from a stopped process.
std::string stack_of(pid_t, int output_fd);

}  // namespace distgrad
