// Writes a scenario document as a readable file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace distgrad {

// Writes valid JSON with two spaces a level, a step or an input a line; what fits is on one line.
// Ends with a newline. Members keep their order.
std::string scenario_text(const nlohmann::ordered_json& document);

}  // namespace distgrad
