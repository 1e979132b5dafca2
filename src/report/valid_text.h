// Text that every reader takes, whatever a rank printed or a stranger named a file.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

// UTF-8 of characters that XML 1.0 allows: control characters other than newline and tab are
// removed, and so are U+FFFE and U+FFFF; bytes that are no UTF-8 become U+FFFD.
std::string valid_text(std::string_view text);

}  // namespace distgrad
