// Reads a scenario file into memory, and says what is the matter where that cannot be done.
#pragma once

#include <string>

namespace distgrad {

// At most 64 MiB, of a regular file or a pipe. Throws InvalidScenario, with a misspelt name's
// neighbour as a hint.
std::string read_scenario_file(const std::string& path);

}  // namespace distgrad
