#include "repro/python_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <cmath>

#include "report/words.h"
#include "scenario/syntax.h"

namespace distgrad {
namespace {

std::string nested(const Array& array, std::size_t dim, std::int64_t& next) {
  if (dim == array.shape().size()) return number_literal(array[next++]);
  std::vector<std::string> items;
  for (std::int64_t i = 0; i < array.shape()[dim]; ++i)
    items.push_back(nested(array, dim + 1, next));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

}  // namespace

std::string number_literal(double value) {
  if (!std::isfinite(value)) return fmt::format("float(\"{}\")", number_text(value));
  std::string text = number_text(value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string tensor_literal(const Array& array) {
  if (array.size() == 0) return fmt::format("torch.zeros({})", fmt::join(array.shape(), ", "));
  std::int64_t next = 0;
  return fmt::format("torch.tensor({})", nested(array, 0, next));
}

std::string list_literal(const std::vector<std::vector<int>>& lists) {
  std::vector<std::string> items;
  for (const std::vector<int>& list : lists)
    items.push_back(fmt::format("[{}]", fmt::join(list, ", ")));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string list_literal(const std::vector<double>& values) {
  std::vector<std::string> items;
  for (const double value : values) items.push_back(number_literal(value));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string string_literal(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string indented_python(std::string_view lines, int levels) {
  std::string out;
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size() - 1) + 1;
    if (end > 1) out.append(static_cast<std::size_t>(levels) * 4, ' ');
    out += lines.substr(0, end);
    lines.remove_prefix(end);
  }
  return out;
}

std::string docstring_text(std::string text) {
  std::string out;
  for (const char c : for_terminal(text)) {
    if (c == '\\') out += '\\';
    out += c == '"' && out.ends_with("\"\"") ? '\'' : c;
  }
  return out;
}

std::set<std::string> free_names_in(const std::string& expression) {
  try {
    return free_names(*parse_expression(expression));
  } catch (const ExpressionError&) {
    return {};
  }
}

std::string camel_case(std::string_view name) {
  std::string text;
  bool upper = true;
  for (const char c : name) {
    if (c != '_') text += upper ? static_cast<char>(c - 'a' + 'A') : c;
    upper = c == '_';
  }
  return text;
}

}  // namespace distgrad
