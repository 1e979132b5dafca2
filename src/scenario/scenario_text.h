// A scenario document as the text of a readable file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace distgrad {

// Valid JSON, two spaces a level, a step or an input a line; what fits is on one line. Ends with a
// newline. Members stay in their order.
std::string scenario_text(const nlohmann::ordered_json& document);

}  // namespace distgrad
