// Measures how deep JSON is nested before it is parsed, as code that walks or frees it may recurse.
#pragma once

#include <string_view>

namespace distgrad {

// Brackets in strings do not count. For text that is no JSON the answer means nothing.
inline bool is_nested_deeper(std::string_view json, int limit) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limit) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace distgrad
