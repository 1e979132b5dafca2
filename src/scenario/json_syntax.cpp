#include "scenario/json_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "scenario/printable.h"

namespace distgrad {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Returns what a person would call the word at this place.
std::string_view word_at(std::string_view text, std::size_t at) {
  constexpr std::string_view kEnd = " \t\r\n,:[]{}\"";
  const std::size_t end = std::min(text.find_first_of(kEnd, at), text.size());
  return text.substr(at, std::max<std::size_t>(end - at, 1));
}

// Returns what is between the quotes of the text that begins here, as written.
std::string_view text_at(std::string_view text, std::size_t at) {
  return text.substr(at + 1, text.find('"', at + 1) - at - 1);
}

bool is_json_number(std::string_view word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return end == word.data() + word.size() && is_digit(word.back());
}

std::string about_number(std::string_view word) {
  if (is_json_number(word) && !(word[0] == '0' && word.size() > 1 && is_digit(word[1])) &&
      word[0] != '.')
    return fmt::format("{} is beyond the range of float64; write \"inf\" for infinity",
                       printable(word));
  return fmt::format(
      "{} is no JSON number; write 1.0, 0.5, -2 or 1e-3 (no leading +, no leading zeros, a digit "
      "on both sides of the point)",
      printable(word));
}

// Says what a word that is no JSON value was probably meant to be, or "" if unknown.
std::string about_word(std::string_view word) {
  struct Meant {
    std::string_view word, instead;
  };
  constexpr std::array<Meant, 13> kMeant = {{{"NaN", "\"nan\""},
                                             {"nan", "\"nan\""},
                                             {"Infinity", "\"inf\""},
                                             {"-Infinity", "\"-inf\""},
                                             {"inf", "\"inf\""},
                                             {"-inf", "\"-inf\""},
                                             {"Inf", "\"inf\""},
                                             {"-Inf", "\"-inf\""},
                                             {"+inf", "\"inf\""},
                                             {"True", "true"},
                                             {"False", "false"},
                                             {"None", "null"},
                                             {"-nan", "\"nan\""}}};
  for (const Meant& meant : kMeant)
    if (word == meant.word) return fmt::format("{} is not JSON; write {}", word, meant.instead);
  if (word[0] == '/' || word[0] == '#') return "JSON has no comments; write it into \"note\"";
  if (word[0] == '\'') return "a text stands in double quotes, not in single ones";
  if (is_digit(word[0]) || word[0] == '-' || word[0] == '+' || word[0] == '.')
    return about_number(word);
  if (std::isalpha(static_cast<unsigned char>(word[0])) || word[0] == '_')
    return fmt::format("a text stands in double quotes; write {}", in_quotes(word));
  return {};
}

// Returns nlohmann's message about the inside of a text, without its prefix and the text read so
// far.
std::string about_text(const std::string& parser_message) {
  const std::size_t begin = parser_message.find("invalid string: ");
  if (begin == std::string::npos) return "this text is not well formed";
  std::string what = parser_message.substr(begin + std::string("invalid string: ").size());
  what = what.substr(0, what.find("; last read"));
  if (what.find("U+000A") != std::string::npos || what.find("U+000D") != std::string::npos ||
      what.find("missing closing quote") != std::string::npos)
    return "the text that begins here is not closed on its line";
  if (what.find("ill-formed UTF-8") != std::string::npos)
    return "this text is not valid UTF-8; save the file as UTF-8";
  if (what.find("backslash") != std::string::npos)
    return "a backslash in a text is followed by one of \" \\ / b f n r t u; write \\\\ for a "
           "backslash";
  return "this text is not well formed: " + printable(what, 120);
}

std::string about_end(const SyntaxError& error) {
  if (error.container.empty())
    return error.after == 0 ? "the file is empty" : "the file ends too early";
  return fmt::format("the file ends before the {} that begins in line {} is closed",
                     error.container, error.container_line);
}

}  // namespace

std::size_t next_token(std::string_view text, std::size_t from) {
  while (from < text.size() && (is_space(text[from]) || text[from] == ',' || text[from] == ':'))
    ++from;
  return from;
}

std::size_t end_of_number(std::string_view text, std::size_t at) {
  const auto skip_digits = [&] {
    while (at < text.size() && is_digit(text[at])) ++at;
  };
  const auto skip = [&](std::string_view any_of) {
    const bool there = at < text.size() && any_of.find(text[at]) != std::string_view::npos;
    if (there) ++at;
    return there;
  };
  skip("-");
  if (!skip("0")) skip_digits();
  if (skip(".")) skip_digits();
  if (skip("eE")) {
    skip("+-");
    skip_digits();
  }
  return at;
}

SyntaxExplanation explain(const SyntaxError& error) {
  const std::size_t at = next_token(error.text, error.after);
  const std::string_view gap = error.text.substr(error.after, at - error.after);
  const auto commas = std::count(gap.begin(), gap.end(), ',');
  const auto colons = std::count(gap.begin(), gap.end(), ':');
  if (at >= error.text.size()) return {error.text.size(), about_end(error)};

  // A number that goes on after its end, such as 01 or 0x10, is one word to a person.
  if (gap.empty() && at > 0 && is_digit(error.text[at - 1]) &&
      !std::ispunct(static_cast<unsigned char>(error.text[at]))) {
    const std::size_t begin = error.text.find_last_of(" \t\r\n,:[]{}\"", at) + 1;
    return {begin, about_number(word_at(error.text, begin))};
  }
  const std::string_view word = word_at(error.text, at);
  const bool in_object = error.container == "object";
  const bool value_expected = in_object ? error.after_key : true;
  if (error.container.empty() && error.after > 0)
    return {at, fmt::format("unexpected {} after the end", in_quotes(word))};
  if (error.after_key && colons == 0) return {at, "a colon is missing after the key"};
  if (colons > (error.after_key ? 1 : 0)) return {error.after + gap.find(':'), "unexpected colon"};
  if (commas > 1 || (commas == 1 && (error.container_empty || error.after_key)))
    return {error.after + gap.find(','), "a value is missing before the comma"};
  if (word[0] == '}' || word[0] == ']') {
    if (error.after_key) return {at, "a value is missing after the colon"};
    if (commas == 1)
      return {error.after + gap.find(','),
              fmt::format("a comma before the closing {}; remove it", word[0])};
    return {at, fmt::format("unexpected {}; the {} that begins in line {} is still open", word[0],
                            error.container, error.container_line)};
  }
  if (word[0] == '"' && error.parser_message.find("invalid string") != std::string::npos)
    return {at, about_text(error.parser_message)};
  const std::string meant = about_word(word);
  if (word[0] == '/' || word[0] == '#') return {at, meant};
  if (commas == 0 && !error.container_empty && !error.after_key && !error.container.empty())
    return {at, fmt::format("a comma is missing before {}",
                            in_quotes(word[0] == '"' ? text_at(error.text, at) : word))};
  if (!value_expected && word[0] != '"')
    return {at, fmt::format("a key in double quotes is expected, not {}", in_quotes(word))};
  if (!meant.empty()) return {at, meant};
  return {at, fmt::format("unexpected {}", in_quotes(word))};
}

}  // namespace distgrad
