// Matches regular expressions with the C library, as std::regex takes seconds of the build of each
// file that includes it.
#pragma once

#include <regex.h>

#include <string>
#include <vector>

namespace distgrad {

class Pattern {
 public:
  // Takes a POSIX extended expression, which must be valid.
  explicit Pattern(const char* expression);
  ~Pattern();
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  // Returns the first match and what its groups matched ("" where one took no part). Empty where
  // there is no match, or where the text has a byte 0.
  std::vector<std::string> find(const std::string& text) const;

 private:
  regex_t compiled_{};
};

}  // namespace distgrad
