// Makes expressions from others by small changes, reproducibly, for tests.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "scenario/syntax.h"
#include "scenario/tokens.h"

namespace distgrad {

class Mutants {
 public:
  Mutants(std::vector<std::string> texts, unsigned seed)
      : texts_(std::move(texts)), random_(seed) {}

  // Removes, replaces and inserts characters. The result is seldom an expression.
  std::string with_characters_changed() {
    static const std::string kAlphabet = "()[],.:*+-/%<>=&|^~'\" x1e0_rankforintorch\\\n\t\x80";
    std::string text = any();
    for (std::size_t edits = 1 + below(3); edits > 0 && !text.empty(); --edits) {
      const std::size_t at = below(text.size());
      switch (below(3)) {
        case 0:
          text.erase(at, 1 + below(3));
          break;
        case 1:
          text.insert(at, 1, kAlphabet[below(kAlphabet.size())]);
          break;
        default:
          text[at] = kAlphabet[below(kAlphabet.size())];
      }
    }
    return text;
  }

  // Exchanges tokens for tokens of the same kind from other expressions. The result is often an
  // expression with another meaning.
  std::string with_tokens_changed() {
    std::string text = any();
    for (std::size_t edits = 1 + below(2); edits > 0; --edits) {
      const std::vector<Token> tokens = tokenize(text);
      const Token& old = tokens[below(tokens.size() - 1)];
      const std::vector<Token> others = tokenize(any());
      const Token& other = others[below(others.size() - 1)];
      if (old.kind != other.kind && !(is_number(old) && is_number(other)) && below(8) != 0)
        continue;
      text =
          text.substr(0, old.place) + written(other) + text.substr(old.place + written(old).size());
      try {
        parse_expression(text);
      } catch (const ExpressionError&) {
        break;
      }
    }
    return text;
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_()) % n; }
  const std::string& any() { return texts_[below(texts_.size())]; }
  static bool is_number(const Token& token) {
    return token.kind == Token::Kind::kInt || token.kind == Token::Kind::kFloat;
  }
  static std::string written(const Token& token) {
    return token.kind == Token::Kind::kString ? "'" + token.text + "'" : token.text;
  }

  std::vector<std::string> texts_;
  std::mt19937 random_;
};

}  // namespace distgrad
