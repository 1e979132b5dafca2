// Reads a scenario file and checks all of it that can be checked without torch. Contract:
// docs/scenarios.md.
#pragma once

#include <string>
#include <string_view>

#include "model/scenario.h"
#include "scenario/invalid_scenario.h"

namespace distgrad {

// `file` is what messages call it. Throws InvalidScenario.
Scenario parse_scenario(std::string_view text, std::string file);

// Throws InvalidScenario for what is in the file, and also where there is no such file, or it
// cannot be read.
Scenario load_scenario(const std::string& path);

}  // namespace distgrad
