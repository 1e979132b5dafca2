#include "scenario/fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <limits>

#include "base/did_you_mean.h"
#include "scenario/printable.h"

namespace distgrad {

void Problems::at(const JsonValue& value, std::string message) {
  add(value.position(), value.pointer(), std::move(message));
}

void Problems::at_key(const JsonValue& member, std::string message) {
  add(member.key_position(), member.pointer(), std::move(message));
}

void Problems::missing(const JsonValue& object, std::string_view key, std::string message) {
  std::string pointer = object.pointer() + "/" + pointer_token(key);
  if (!misspelt_.contains(pointer)) add(object.position(), std::move(pointer), std::move(message));
}

void Problems::was_misspelt(const JsonValue& object, std::string_view key) {
  misspelt_.insert(object.pointer() + "/" + pointer_token(key));
}

void Problems::add(SourcePosition position, std::string pointer, std::string message) {
  if (!full()) found_.push_back({file_, position, std::move(pointer), std::move(message), ""});
}

std::vector<InvalidFile> Problems::take() {
  constexpr std::size_t kMostReported = 20;
  const auto place = [](const InvalidFile& p) {
    return std::pair(p.position.line, p.position.column);
  };
  std::stable_sort(found_.begin(), found_.end(),
                   [&](const InvalidFile& a, const InvalidFile& b) { return place(a) < place(b); });
  const auto same = [&](const InvalidFile& a, const InvalidFile& b) {
    return place(a) == place(b) && a.pointer == b.pointer;
  };
  found_.erase(std::unique(found_.begin(), found_.end(), same), found_.end());
  if (found_.size() > kMostReported) found_.erase(found_.begin() + kMostReported, found_.end());
  return std::move(found_);
}

std::string description(const JsonValue& value) {
  switch (value.kind()) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kTrue:
      return "true";
    case JsonKind::kFalse:
      return "false";
    case JsonKind::kNumber:
      return "the number " + printable(value.written(), 30);
    case JsonKind::kText:
      return "the text " + in_quotes(value.text());
    case JsonKind::kList:
      return "a list";
    case JsonKind::kObject:
      return "an object";
  }
  return "";
}

std::string choices(std::span<const std::string> names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + in_quotes(names[i]);
  return text;
}

std::string name_hint(std::string_view word, std::span<const std::string> known) {
  constexpr std::size_t kMostSearched = 500;
  if (known.size() > kMostSearched) return {};
  const std::string name = nearest_name(word, known);
  // Every name of one letter is one edit away from every other.
  const bool is_near =
      word.size() > 1 || (name.size() == 1 && std::tolower(name[0]) == std::tolower(word[0]));
  return name.empty() || !is_near ? std::string() : "; did you mean " + in_quotes(name) + "?";
}

std::string name_hint_or_choices(std::string_view word, std::span<const std::string> known,
                                 std::string_view otherwise) {
  constexpr std::size_t kFew = 20;
  const std::string hint = name_hint(word, known);
  if (!hint.empty() || known.empty() || known.size() > kFew) return hint;
  return fmt::format("; {} {}", otherwise, choices(known));
}

std::optional<std::int64_t> read_integer(const JsonValue& value, std::int64_t low,
                                         std::int64_t high, Problems& problems) {
  const std::optional<std::int64_t> integer = value.is_number() ? value.integer() : std::nullopt;
  if (integer && *integer >= low && *integer <= high) return integer;
  const bool whole =
      value.is_number() && value.written().find_first_of(".eE") == std::string_view::npos;
  const std::string range = fmt::format("from {} to {}", low, high);
  problems.at(value, whole
                         ? fmt::format("must be {}, not {}", range, printable(value.written(), 30))
                         : fmt::format("must be an integer {}, not {}", range, description(value)));
  return std::nullopt;
}

std::optional<double> read_number(const JsonValue& value, Problems& problems) {
  if (value.is_number()) return value.number();
  problems.at(value, "must be a number, not " + description(value));
  return std::nullopt;
}

std::optional<bool> read_bool(const JsonValue& value, Problems& problems) {
  if (value.kind() == JsonKind::kTrue) return true;
  if (value.kind() == JsonKind::kFalse) return false;
  problems.at(value, "must be true or false, not " + description(value));
  return std::nullopt;
}

std::optional<std::string> read_text(const JsonValue& value, Problems& problems) {
  if (value.is_text()) return value.text();
  problems.at(value, "must be a text, not " + description(value));
  return std::nullopt;
}

std::optional<std::string> read_name_among(const JsonValue& value, std::string_view what,
                                           std::span<const std::string> names, Problems& problems) {
  if (!value.is_text()) {
    problems.at(value, fmt::format("must be {}, not {}", choices(names), description(value)));
    return std::nullopt;
  }
  const std::string& name = value.text();
  if (std::find(names.begin(), names.end(), name) != names.end()) return name;
  problems.at(value, fmt::format("unknown {} {}{}", what, in_quotes(name),
                                 name_hint_or_choices(name, names, "it is")));
  return std::nullopt;
}

bool read_object(const JsonValue& value, std::string_view expected, Problems& problems) {
  if (value.is_object()) return true;
  problems.at(value, fmt::format("must be an object, {}, not {}", expected, description(value)));
  return false;
}

bool read_list(const JsonValue& value, std::string_view expected, Problems& problems) {
  if (value.is_list()) return true;
  problems.at(value, fmt::format("must be a list, {}, not {}", expected, description(value)));
  return false;
}

bool check_keys(const JsonValue& object, std::span<const std::string> known, Problems& problems) {
  bool all_known = true;
  for (const JsonValue& member : object.children()) {
    if (std::find(known.begin(), known.end(), member.key()) != known.end()) continue;
    std::string hint = name_hint(member.key(), known);
    if (hint.empty()) hint = fmt::format("; known here: {}", fmt::join(known, ", "));
    problems.at_key(member, fmt::format("unknown key {}{}", in_quotes(member.key()), hint));
    problems.was_misspelt(object, nearest_name(member.key(), known));
    all_known = false;
    if (problems.full()) break;
  }
  return all_known;
}

bool check_keys(const JsonValue& object, std::initializer_list<std::string_view> known,
                Problems& problems) {
  const std::vector<std::string> names(known.begin(), known.end());
  return check_keys(object, names, problems);
}

std::optional<double> non_finite_word(const JsonValue& value) {
  if (!value.is_text()) return std::nullopt;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value.text() == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value.text() == "inf") return kInfinity;
  if (value.text() == "-inf") return -kInfinity;
  return std::nullopt;
}

namespace {

// Fills in the elements below `value`, which must have the shape from `depth` on. Otherwise returns
// false and adds a problem.
bool read_elements(const JsonValue& value, const Shape& shape, std::size_t depth,
                   std::vector<double>& elements, Problems& problems) {
  if (depth < shape.size()) {
    if (!value.is_list()) {
      problems.at(value, fmt::format("ragged: a list of {} is expected here, not {}", shape[depth],
                                     description(value)));
      return false;
    }
    if (static_cast<std::int64_t>(value.size()) != shape[depth]) {
      problems.at(value, fmt::format("ragged: {} elements here, {} in the first list beside it",
                                     value.size(), shape[depth]));
      return false;
    }
    for (const JsonValue& child : value.children())
      if (!read_elements(child, shape, depth + 1, elements, problems)) return false;
    return true;
  }
  if (value.is_list() && !shape.empty()) {
    problems.at(value, "ragged: a number is expected here, as in the first element, not a list");
    return false;
  }
  if (value.is_number()) {
    elements.push_back(value.number());
  } else if (const std::optional<double> word = non_finite_word(value)) {
    elements.push_back(*word);
  } else {
    problems.at(value, fmt::format("must be a number, \"nan\", \"inf\" or \"-inf\", not {}",
                                   description(value)));
    return false;
  }
  return true;
}

}  // namespace

std::optional<Array> read_array(const JsonValue& value, Problems& problems) {
  constexpr std::size_t kMaxDimensions = 64;  // torch's
  Shape shape;
  for (JsonValue first = value; first.is_list(); first = first.children().front()) {
    shape.push_back(static_cast<std::int64_t>(first.size()));
    if (shape.size() > kMaxDimensions) {
      problems.at(value, fmt::format("more than {} dimensions", kMaxDimensions));
      return std::nullopt;
    }
    if (first.size() == 0) break;
  }
  std::vector<double> elements;
  if (!read_elements(value, shape, 0, elements, problems)) return std::nullopt;
  return Array(std::move(shape), std::move(elements));
}

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace distgrad
