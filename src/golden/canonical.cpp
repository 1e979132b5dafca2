#include "golden/canonical.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "golden/number.h"
#include "scenario/json_tree.h"

namespace distgrad::golden {
namespace {

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Spells 1, 1.0 and 1e0 alike. A whole number beyond 2^53 (a seed) keeps its digits, as float64
// does not hold all of those.
std::string number(const JsonValue& value) {
  constexpr std::int64_t kAllFloat64Hold = std::int64_t{1} << 53;
  const auto integer = value.integer();
  if (integer && std::abs(*integer) > kAllFloat64Hold) return std::to_string(*integer);
  return number_text(value.number());
}

void append(std::string& out, const JsonValue& value, bool sorted);

void append_object(std::string& out, const JsonValue& object, bool sorted, bool top) {
  std::vector<JsonValue> members = object.children();
  if (top)
    std::erase_if(members, [](const JsonValue& m) {
      return m.key() == "$schema" || m.key() == "note" || m.key() == "subjects" ||
             m.key() == "timeout_s";
    });
  if (sorted)
    std::sort(members.begin(), members.end(),
              [](const JsonValue& a, const JsonValue& b) { return a.key() < b.key(); });
  out += '{';
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (i > 0) out += ',';
    out += quoted(members[i].key()) + ':';
    append(out, members[i], !(top && (members[i].key() == "mesh" || members[i].key() == "inputs")));
  }
  out += '}';
}

void append_list(std::string& out, const JsonValue& list) {
  out += '[';
  bool first = true;
  for (const JsonValue& item : list.children()) {
    if (!first) out += ',';
    first = false;
    append(out, item, true);
  }
  out += ']';
}

void append(std::string& out, const JsonValue& value, bool sorted) {
  switch (value.kind()) {
    case JsonKind::kNull:
      out += "null";
      break;
    case JsonKind::kTrue:
      out += "true";
      break;
    case JsonKind::kFalse:
      out += "false";
      break;
    case JsonKind::kNumber:
      out += number(value);
      break;
    case JsonKind::kText:
      out += quoted(value.text());
      break;
    case JsonKind::kList:
      append_list(out, value);
      break;
    case JsonKind::kObject:
      append_object(out, value, sorted, false);
      break;
  }
}

}  // namespace

std::string canonical_form(std::string_view text) {
  std::vector<JsonProblem> problems;
  const JsonTree tree(text, problems);
  std::string out;
  if (const auto root = tree.root()) append_object(out, *root, true, true);
  return out;
}

}  // namespace distgrad::golden
