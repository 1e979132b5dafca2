// What can be seen of a process from outside: whether it runs, sleeps or is stopped, how long it
// waited for a core, and where its Python code is.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace distgrad {

// As /proc has it: 'R', 'S', 'D', 'T', 'Z', ...; 0: there is no such process.
char process_state(pid_t);

// "asleep", "busy", "stopped"; empty where that cannot be said.
std::string state_text(char state);

// Time that its first thread could have run and got no core.
std::int64_t waited_for_core_ns(pid_t);

// Of what a process writes at SIGUSR1 (Python's faulthandler): the innermost line of the user's
// code, "loss.py:41 in f: time.sleep(1000)"; the last part where the file can be read.
std::string place_in_stack(const std::string& stack);

// Asks a rank in Python for its stack, which it writes to its output file, and waits a moment for
// it. Empty where none comes, as of a process that is stopped.
std::string stack_of(pid_t, int output_fd);

}  // namespace distgrad
