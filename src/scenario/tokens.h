// Splits one line of the scenario language into Python's tokens.
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

// The last token is kEnd. Throws ExpressionError for anything that is no token of the language.
std::vector<Token> tokenize(const std::string& text);

}  // namespace distgrad
