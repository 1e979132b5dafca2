// Tells the Python API about the launcher's ranks, so that one place reads the environment.
#pragma once

#include <string>
#include <vector>

namespace distgrad {

inline constexpr const char* kPlaceWord = "--launched-place";

// Prints, as JSON, where this process stands among the launcher's ranks, where rank 0 is met, and
// the key that proves that both are of one job; null without a launcher. With an address as
// argument it prints the name of the interface that has it. Returns the exit code. Throws
// UserError, SystemError.
int print_place(const std::vector<std::string>& arguments);

}  // namespace distgrad
