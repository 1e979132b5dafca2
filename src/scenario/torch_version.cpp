#include "scenario/torch_version.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <compare>
#include <optional>
#include <vector>

#include "scenario/printable.h"

namespace distgrad {
namespace {

// Longer ones come first.
constexpr std::array<std::string_view, 6> kOperators = {">=", "<=", "==", "!=", ">", "<"};

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

// Returns the numbers of "2.13.1", at least one, or nothing if it is written differently.
std::optional<std::vector<int>> numbers_of(std::string_view text, bool with_suffix) {
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    int number = 0;
    const auto [after, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 0) return std::nullopt;
    numbers.push_back(number);
    at = after;
    if (at == end) return numbers;
    if (*at != '.') return with_suffix ? std::optional(numbers) : std::nullopt;
    ++at;
    if (with_suffix && (at == end || *at < '0' || *at > '9')) return numbers;  // 2.13.dev2026
  }
}

struct Condition {
  std::string_view op;
  std::vector<int> version;
};

std::optional<Condition> parse_condition(std::string_view text) {
  text = trimmed(text);
  for (const std::string_view op : kOperators) {
    if (!text.starts_with(op)) continue;
    auto version = numbers_of(trimmed(text.substr(op.size())), false);
    if (!version) return std::nullopt;
    return Condition{op, std::move(*version)};
  }
  return std::nullopt;
}

std::optional<std::vector<Condition>> parse_conditions(std::string_view text) {
  std::vector<Condition> conditions;
  while (true) {
    const std::size_t comma = text.find(',');
    auto condition = parse_condition(text.substr(0, comma));
    if (!condition) return std::nullopt;
    conditions.push_back(std::move(*condition));
    if (comma == std::string_view::npos) return conditions;
    text.remove_prefix(comma + 1);
  }
}

bool holds(const Condition& condition, std::vector<int> version) {
  version.resize(condition.version.size(), 0);
  const std::strong_ordering order = version <=> condition.version;
  if (condition.op == ">=") return order >= 0;
  if (condition.op == "<=") return order <= 0;
  if (condition.op == "==") return order == 0;
  if (condition.op == "!=") return order != 0;
  return condition.op == ">" ? order > 0 : order < 0;
}

}  // namespace

std::string problem_with_torch_condition(std::string_view condition) {
  if (parse_conditions(condition)) return {};
  return "a condition on torch's version is like \">=2.13\" or \">=2.11,<2.13\", not " +
         in_quotes(condition);
}

bool torch_condition_holds(std::string_view condition, std::string_view version) {
  const auto conditions = parse_conditions(condition);
  const auto numbers = numbers_of(version, true);
  if (!conditions || !numbers) return false;
  return std::all_of(conditions->begin(), conditions->end(),
                     [&](const Condition& c) { return holds(c, *numbers); });
}

}  // namespace distgrad
