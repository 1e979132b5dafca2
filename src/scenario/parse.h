// Reads a scenario file and checks everything that needs no torch. Contract: docs/scenarios.md.
#pragma once

#include <string>
#include <string_view>

#include "model/scenario.h"
#include "scenario/invalid_scenario.h"

namespace distgrad {

// `file` is the name in messages. Throws InvalidScenario.
Scenario parse_scenario(std::string_view text, std::string file);

// Throws InvalidScenario for what is in the file, and also if the file is missing or unreadable.
Scenario load_scenario(const std::string& path);

}  // namespace distgrad
