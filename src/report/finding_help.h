// What to do about each finding, for somebody who meets its name in a code-scanning page.
#pragma once

#include <string_view>

namespace distgrad {

// What usually causes it and what to change. Throws std::out_of_range for a name that is no
// finding's.
std::string_view help_with(std::string_view finding);

}  // namespace distgrad
