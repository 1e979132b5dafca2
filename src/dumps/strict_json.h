// Parses JSON from a stranger's file: no key may come twice in an object, and no nesting may
// exhaust the stack.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace distgrad::dumps {

// Throws a UserError with `where`, a colon, and the problem.
nlohmann::ordered_json parse_strict_json(std::string_view text, const std::string& where);

}  // namespace distgrad::dumps
