// Text of a stranger's file as it may be shown in a message on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

inline constexpr std::size_t kLongestPath = 4096;  // the system's limit

// In double quotes; control characters and invalid UTF-8 escaped, long texts cut ("..."). Never
// contains a newline or an escape sequence.
std::string in_quotes(std::string_view text);

// The same without the quotes.
std::string printable(std::string_view text, std::size_t longest = 60);

}  // namespace distgrad
