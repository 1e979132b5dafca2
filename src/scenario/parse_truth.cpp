// Reads truth and tolerance.
#include <fmt/format.h>

#include "scenario/parts.h"
#include "scenario/printable.h"

namespace distgrad {
namespace {

// Returns the shape of an input on a rank (or of the full tensor) if the file gives it in numbers.
const Shape* known_shape(const Input& input, std::size_t rank) {
  if (const auto* array = std::get_if<Array>(&input.value)) return &array->shape();
  const auto* by_rank = std::get_if<std::vector<Array>>(&input.value);
  return by_rank && rank < by_rank->size() ? &(*by_rank)[rank].shape() : nullptr;
}

void check_shape(const Array& truth, const JsonValue& where, const Input& input, std::size_t rank,
                 Problems& problems) {
  const Shape* shape = known_shape(input, rank);
  if (!shape || *shape == truth.shape() || (truth.size() == 0 && element_count(*shape) == 0))
    return;
  problems.at(where, fmt::format("has the shape {}, the input {}", shape_text(truth.shape()),
                                 shape_text(*shape)));
}

void read_by_rank(const JsonValue& member, const Input& input, Program::Truth& truth,
                  Problems& problems) {
  if (!member.is_list()) {
    problems.at(
        member,
        fmt::format(
            "{} is local: its truth is a list of one value for each rank, or a closed form in "
            "double quotes, not {}",
            in_quotes(input.name), description(member)));
    return;
  }
  std::vector<Array> values;
  for (const JsonValue& item : member.children()) {
    auto array = read_array(item, problems);
    if (!array) return;
    if (!item.is_text()) check_shape(*array, item, input, values.size(), problems);
    values.push_back(std::move(*array));
  }
  truth.value = std::move(values);
}

std::optional<double> read_tolerance_bound(const JsonValue& object, std::string_view key,
                                           Problems& problems) {
  const auto value = object.member(key);
  if (!value) {
    problems.missing(object, key, "is missing; write both \"rtol\" and \"atol\"");
    return std::nullopt;
  }
  const auto number = read_number(*value, problems);
  if (number && *number < 0) problems.at(*value, "must be 0 or more");
  return number;
}

}  // namespace

void read_truth(Parts& parts) {
  const auto value = parts.key("truth");
  if (!value || !read_object(*value, "{ \"x\": [1.0, 2.0] }", parts.problems)) return;
  const std::vector<std::string> names = input_names(parts.scenario);
  for (const JsonValue& member : value->children()) {
    if (parts.problems.full()) return;
    const Input* input = input_named(parts.scenario, member.key());
    if (!input) {
      parts.problems.at_key(member, "unknown input " + in_quotes(member.key()) +
                                        name_hint_or_choices(member.key(), names, "it is"));
      continue;
    }
    if (!input->requires_grad) {
      parts.problems.at_key(
          member, in_quotes(input->name) + " has \"requires_grad\": false, so no gradient");
      continue;
    }
    Program::Truth truth{.input = input->name, .pointer = member.pointer(), .value = Array()};
    if (const auto word = non_finite_word(member)) {
      truth.value = Array::scalar(*word);
    } else if (member.is_text()) {
      if (auto expression = read_expression(member, parts.problems))
        truth.value = std::move(*expression);
    } else if (input->is_local()) {
      read_by_rank(member, *input, truth, parts.problems);
    } else if (auto array = read_array(member, parts.problems)) {
      check_shape(*array, member, *input, 0, parts.problems);
      truth.value = std::move(*array);
    }
    parts.scenario.truth.push_back(std::move(truth));
  }
}

void read_tolerance(Parts& parts) {
  const auto value = parts.key("tolerance");
  if (!value) return;
  Tolerance& tolerance = parts.scenario.tolerance;
  if (value->is_object()) {
    check_keys(*value, {"rtol", "atol"}, parts.problems);
    tolerance.kind = Tolerance::Kind::kExplicit;
    tolerance.rtol = read_tolerance_bound(*value, "rtol", parts.problems).value_or(0);
    tolerance.atol = read_tolerance_bound(*value, "atol", parts.problems).value_or(0);
  } else if (value->is_number() && value->number() == 0) {
    tolerance.kind = Tolerance::Kind::kEqual;
  } else {
    parts.problems.at(*value, "must be 0 (equal) or { \"rtol\": a, \"atol\": b }, not " +
                                  description(*value) + "; leave it out for the derived tolerance");
  }
}

}  // namespace distgrad
