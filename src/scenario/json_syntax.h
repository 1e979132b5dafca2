// Explains to a person what is wrong where a JSON parser gave up.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

struct SyntaxError {
  std::string_view text;         // the whole file
  std::size_t after = 0;         // end of the last good token
  std::string_view container;    // "object", "list", or empty at the top
  int container_line = 0;        // where it begins
  bool after_key = false;        // the last good token is a key
  bool container_empty = false;  // no good token in it so far
  std::string parser_message;    // the parser's message, for problems inside a text
};

struct SyntaxExplanation {
  std::size_t offset = 0;
  std::string message;
};

SyntaxExplanation explain(const SyntaxError&);

// Returns where the JSON number that begins at `at` ends.
std::size_t end_of_number(std::string_view text, std::size_t at);

// Returns where the next token begins, after white space, commas and colons.
std::size_t next_token(std::string_view text, std::size_t from);

}  // namespace distgrad
