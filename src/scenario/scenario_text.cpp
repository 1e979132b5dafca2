#include "scenario/scenario_text.h"

#include <nlohmann/json.hpp>

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kWidth = 100;

std::string scalar_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string in_one_line(const Json& value) {
  if (!value.is_structured() || value.empty()) return scalar_text(value);
  std::string text;
  for (const auto& [key, item] : value.items()) {
    if (!text.empty()) text += ", ";
    if (value.is_object()) text += scalar_text(key) + ": ";
    text += in_one_line(item);
  }
  return value.is_object() ? "{ " + text + " }" : "[" + text + "]";
}

// Returns true for objects of which a reader wants each member on its own line, however short.
bool is_a_line_each(const std::string& key, const Json& value) {
  return key == "steps" || ((key == "inputs" || key == "subjects") && value.size() > 1);
}

void append(std::string& out, const std::string& key, const Json& value, std::size_t indent,
            std::size_t used) {
  const std::string line = in_one_line(value);
  const bool fits = indent + used + line.size() + 1 <= kWidth;  // 1: a comma
  if (!value.is_structured() || value.empty() ||
      (indent > 0 && fits && !is_a_line_each(key, value))) {
    out += line;
    return;
  }
  const std::string spaces(indent + 2, ' ');
  out += value.is_object() ? "{" : "[";
  bool first = true;
  for (const auto& [name, item] : value.items()) {
    out += first ? "\n" : ",\n";
    first = false;
    const std::string before = value.is_object() ? scalar_text(name) + ": " : "";
    out += spaces + before;
    append(out, value.is_object() ? name : "", item, indent + 2, before.size());
  }
  out += "\n" + std::string(indent, ' ') + (value.is_object() ? "}" : "]");
}

}  // namespace

std::string scenario_text(const Json& document) {
  std::string text;
  append(text, "", document, 0, 0);
  return text + "\n";
}

}  // namespace distgrad
