#include "scenario/tokens.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "scenario/syntax.h"

namespace distgrad {
namespace {

// Bounds the parser's and the compiler's recursion. A scenario's expressions are short; values
// belong in its inputs.
constexpr std::size_t kMaxTokens = 10000;

constexpr std::array<std::string_view, 35> kKeywords = {
    "False", "None",     "True",  "and",    "as",   "assert", "async",  "await",    "break",
    "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",  "for",
    "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal", "not",
    "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield"};

// Longer operators come first.
constexpr std::array<std::string_view, 31> kOperators = {
    "...", "**", "//", "<<", ">>", "<=", ">=", "==", "!=", ":=", "->", "+", "-", "*", "/", "%",
    "@",   "&",  "|",  "^",  "~",  "<",  ">",  "=",  "(",  ")",  "[",  "]", ",", ":", "."};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool continues_name(char c) { return begins_name(c) || is_digit(c); }

class Tokenizer {
 public:
  explicit Tokenizer(const std::string& text) : text_(text) {}

  std::vector<Token> run() {
    for (skip_blanks(); at_ < text_.size(); skip_blanks()) {
      next();
      if (tokens_.size() > kMaxTokens)
        throw ExpressionError("the expression is too long; put values into inputs", at_);
    }
    tokens_.push_back({Token::Kind::kEnd, "", text_.size()});
    return std::move(tokens_);
  }

 private:
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t') ++at_;
  }

  void add(Token::Kind kind, std::string text, std::size_t length) {
    tokens_.push_back({kind, std::move(text), at_});
    at_ += length;
  }

  void next() {
    const char c = peek();
    if (begins_name(c)) return name();
    if (is_digit(c) || (c == '.' && is_digit(peek(1)))) return number();
    if (c == '\'' || c == '"') return string();
    for (std::string_view op : kOperators)
      if (text_.compare(at_, op.size(), op) == 0)
        return add(Token::Kind::kOperator, std::string(op), op.size());
    refuse();
  }

  [[noreturn]] void refuse() const {
    const char c = peek();
    if (c == '\n' || c == '\r') throw ExpressionError("an expression is one line", at_);
    if (c == '#')
      throw ExpressionError("an expression has no comments; use the file's \"note\"", at_);
    if (c == ';') throw ExpressionError("';' separates statements; this is one expression", at_);
    if (c == '{' || c == '}')
      throw ExpressionError("dictionaries and sets are not part of the scenario language", at_);
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f)
      throw ExpressionError("only ASCII characters are allowed here", at_);
    throw ExpressionError(std::string("'") + c + "' is not part of the scenario language", at_);
  }

  void name() {
    std::size_t length = 1;
    while (continues_name(peek(length))) ++length;
    if (peek(length) == '\'' || peek(length) == '"')
      throw ExpressionError("strings with a prefix are not part of the scenario language", at_);
    std::string text = text_.substr(at_, length);
    const bool keyword = std::find(kKeywords.begin(), kKeywords.end(), text) != kKeywords.end();
    add(keyword ? Token::Kind::kKeyword : Token::Kind::kName, std::move(text), length);
  }

  // Reads decimal numbers only, on which Python and torch agree.
  void number() {
    std::size_t length = 0;
    bool is_float = false;
    while (is_digit(peek(length))) ++length;
    const bool leading_zero = length > 1 && peek() == '0';
    if (peek(length) == '.') {
      is_float = true;
      ++length;
      while (is_digit(peek(length))) ++length;
    }
    if (peek(length) == 'e' || peek(length) == 'E') {
      std::size_t digits = length + 1;
      if (peek(digits) == '+' || peek(digits) == '-') ++digits;
      if (is_digit(peek(digits))) {
        is_float = true;
        length = digits;
        while (is_digit(peek(length))) ++length;
      }
    }
    if (continues_name(peek(length)))
      throw ExpressionError("numbers are decimal: no hexadecimal, complex or '_' in them", at_);
    if (leading_zero && !is_float)
      throw ExpressionError("integers have no leading zeros in Python", at_);
    add(is_float ? Token::Kind::kFloat : Token::Kind::kInt, text_.substr(at_, length), length);
  }

  void string() {
    const char quote = peek();
    if (peek(1) == quote && peek(2) == quote)
      throw ExpressionError("strings in three quotes are not part of the scenario language", at_);
    std::size_t length = 1;
    while (at_ + length < text_.size() && peek(length) != quote) {
      if (peek(length) == '\\') throw ExpressionError("strings have no escapes here", at_ + length);
      if (static_cast<unsigned char>(peek(length)) < 0x20)
        throw ExpressionError("an expression is one line", at_ + length);
      ++length;
    }
    if (at_ + length >= text_.size()) throw ExpressionError("this string does not end", at_);
    add(Token::Kind::kString, text_.substr(at_ + 1, length - 1), length + 1);
  }

  const std::string& text_;
  std::size_t at_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(const std::string& text) { return Tokenizer(text).run(); }

}  // namespace distgrad
