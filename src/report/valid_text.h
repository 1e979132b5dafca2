// Makes text safe for every reader, whatever a rank printed or a stranger named a file.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

// Works as on a terminal (base/visible_text.h): characters that would hide text or turn its
// direction in a page are shown as their code, and nothing remains that XML 1.0 forbids.
std::string valid_text(std::string_view text);

}  // namespace distgrad
