// Reads conditions on torch's version, as `when` has them: ">=2.13", "<2.13", ">=2.11,<2.14".
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

// Returns why the text is no such condition, or "" if it is one.
std::string problem_with_torch_condition(std::string_view condition);

// Compares only as many parts of the version as the condition has: "2.13.1+cpu" is ==2.13, not
// >2.13. Suffixes (a0, rc1, +cu130) do not count. No condition holds for an unknown (empty)
// version.
bool torch_condition_holds(std::string_view condition, std::string_view version);

}  // namespace distgrad
