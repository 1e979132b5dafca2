// Reads a scenario file into memory, or says why that is impossible.
#pragma once

#include <string>

namespace distgrad {

// Reads at most 64 MiB, of a regular file or a pipe. Throws InvalidScenario, which suggests an
// existing file of a similar name.
std::string read_scenario_file(const std::string& path);

}  // namespace distgrad
