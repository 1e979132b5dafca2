#include "scenario/names.h"

#include <algorithm>
#include <array>

namespace distgrad {
namespace {

constexpr std::array<std::string_view, 35> kPythonKeywords = {
    "False", "None",     "True",  "and",    "as",   "assert", "async",  "await",    "break",
    "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",  "for",
    "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal", "not",
    "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield"};
// TorchScript's lexer has these keywords, Python does not.
constexpr std::array<std::string_view, 2> kTorchScriptKeywords = {"Ellipsis", "NoneType"};

bool starts_identifier(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool continues_identifier(char c) { return starts_identifier(c) || (c >= '0' && c <= '9'); }

template <class Words>
bool is_among(const Words& words, std::string_view name) {
  return std::find(words.begin(), words.end(), name) != words.end();
}

}  // namespace

std::string why_not_a_name(std::string_view name) {
  constexpr std::size_t kLongest = 100;
  if (name.empty()) return "is empty; a name is a Python identifier";
  if (name.size() > kLongest) return "is longer than 100 characters";
  if (!starts_identifier(name[0]) || !std::all_of(name.begin(), name.end(), continues_identifier))
    return "is not a Python identifier (ASCII letters, digits and _, not beginning with a digit)";
  if (is_among(kPythonKeywords, name)) return "is a Python keyword";
  if (is_among(kTorchScriptKeywords, name)) return "is a TorchScript keyword";
  if (name == "rank") return "is the number of the rank in every expression; choose another name";
  if (name == "world_size")
    return "is the number of ranks in every expression; choose another name";
  if (name == "torch") return "is the module in every expression; choose another name";
  return {};
}

std::vector<std::string> reserved_names() {
  std::vector<std::string> names = {"rank", "world_size", "torch"};
  names.insert(names.end(), kPythonKeywords.begin(), kPythonKeywords.end());
  names.insert(names.end(), kTorchScriptKeywords.begin(), kTorchScriptKeywords.end());
  return names;
}

}  // namespace distgrad
