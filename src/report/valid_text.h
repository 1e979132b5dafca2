// Text that every reader takes, whatever a rank printed or a stranger named a file.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

// As on a terminal (base/visible_text.h): what would hide text or turn its direction in a page is
// shown as its code, and nothing remains that XML 1.0 does not allow.
std::string valid_text(std::string_view text);

}  // namespace distgrad
