// Returns lines of a text.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// Ignores line breaks at the text's end.
inline std::string last_line(std::string_view text) {
  text = text.substr(0, text.find_last_not_of('\n') + 1);
  return std::string(text.substr(text.rfind('\n') + 1));
}

}  // namespace distgrad
