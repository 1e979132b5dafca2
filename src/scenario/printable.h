// Makes text of a stranger's file safe to show in a message on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

inline constexpr std::size_t kLongestPath = 4096;  // the system's limit

// Returns the text in double quotes, with control characters and invalid UTF-8 escaped and long
// texts cut ("..."). It never contains a newline or an escape sequence.
std::string in_quotes(std::string_view text, std::size_t longest = 60);

// Returns the same without quotes.
std::string printable(std::string_view text, std::size_t longest = 60);

}  // namespace distgrad
