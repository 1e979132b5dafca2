// JSON from a stranger's file: no key twice in an object, no nesting that could exhaust the stack.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace distgrad::dumps {

// Throws UserError: `where`, a colon, and what is wrong.
nlohmann::ordered_json parse_strict_json(std::string_view text, const std::string& where);

}  // namespace distgrad::dumps
