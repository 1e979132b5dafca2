// Python's tokens, as far as one line of the scenario language can hold them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace distgrad {

struct Token {
  enum class Kind { kName, kKeyword, kInt, kFloat, kString, kOperator, kEnd };
  Kind kind{};
  std::string text;  // as written; strings without their quotes
  std::size_t place = 0;
};

// Ends with a token of kind kEnd. Throws ExpressionError for what is not a token of the language.
std::vector<Token> tokenize(const std::string& text);

}  // namespace distgrad
