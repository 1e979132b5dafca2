// Regular expressions of the C library's: std::regex takes seconds to compile in every file.
#pragma once

#include <regex.h>

#include <string>
#include <vector>

namespace distgrad {

class Pattern {
 public:
  // A POSIX extended one, which must be valid.
  explicit Pattern(const char* expression);
  ~Pattern();
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  // The first match, and what its groups matched ("" where one took no part); empty: there is none,
  // as in text with a byte 0.
  std::vector<std::string> find(const std::string& text) const;

 private:
  regex_t compiled_{};
};

}  // namespace distgrad
