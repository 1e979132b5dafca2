// Parses golden files.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "golden/golden_file.h"
#include "scenario/json_tree.h"

namespace distgrad::golden {
namespace {

// Says what is wrong with the file and where, without naming it.
struct Unreadable {
  SourcePosition position;
  std::string why;
};

[[noreturn]] void refuse(const JsonValue& json, std::string why) {
  throw Unreadable{json.position(), "cannot be read as a golden file: " + std::move(why)};
}

JsonValue member(const JsonValue& object, std::string_view key) {
  const auto found = object.member(key);
  if (!found) refuse(object, fmt::format("no \"{}\"", key));
  return *found;
}

std::string text_in(const JsonValue& json) {
  if (!json.is_text()) refuse(json, "not a text where one belongs");
  return json.text();
}

double number_in(const JsonValue& json) {
  if (json.is_number()) return json.number();
  const std::string_view word = json.is_text() ? json.text() : std::string_view();
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (word == "inf") return std::numeric_limits<double>::infinity();
  if (word == "-inf") return -std::numeric_limits<double>::infinity();
  refuse(json, "not a number where one belongs");
}

std::int64_t integer_in(const JsonValue& json) {
  const auto value = json.is_number() ? json.integer() : std::nullopt;
  if (!value) refuse(json, "not a whole number where one belongs");
  return *value;
}

// Returns `read` of each item.
template <class Read>
auto list_of(const JsonValue& json, const Read& read) {
  if (!json.is_list()) refuse(json, "not a list where one belongs");
  std::vector<decltype(read(json))> items;
  for (const JsonValue& item : json.children()) items.push_back(read(item));
  return items;
}

std::vector<double> numbers(const JsonValue& json) { return list_of(json, number_in); }
Shape shape_in(const JsonValue& json) { return list_of(json, integer_in); }

void flatten(const JsonValue& json, const Shape& shape, std::size_t dim, std::vector<double>& out) {
  if (dim == shape.size()) {
    out.push_back(number_in(json));
    return;
  }
  if (!json.is_list() || json.size() != static_cast<std::size_t>(shape[dim]))
    refuse(json, "a ragged tensor");
  for (const JsonValue& item : json.children()) flatten(item, shape, dim + 1, out);
}

Array tensor(const JsonValue& json) {
  if (json.is_object()) {
    Shape shape = shape_in(member(json, "shape"));
    if (element_count(shape) != 0) refuse(json, "a shape without the elements");
    return Array(std::move(shape), {});
  }
  Shape shape;
  for (JsonValue level = json; level.is_list(); level = level.children().front()) {
    if (level.size() == 0) refuse(level, "an empty list");
    shape.push_back(static_cast<std::int64_t>(level.size()));
  }
  std::vector<double> values;
  flatten(json, shape, 0, values);
  return Array(std::move(shape), std::move(values));
}

std::vector<Array> tensors(const JsonValue& json, bool local) {
  return local ? list_of(json, tensor) : std::vector<Array>{tensor(json)};
}

std::vector<Array> bounds_of(const JsonValue& json, const std::vector<Array>& parts, bool local) {
  std::vector<Array> bounds;
  if (json.is_list()) {
    bounds = tensors(json, local);
    const bool fit =
        std::equal(bounds.begin(), bounds.end(), parts.begin(), parts.end(),
                   [](const Array& a, const Array& b) { return a.shape() == b.shape(); });
    if (!fit) refuse(json, "bounds that are not shaped as the values");
    return bounds;
  }
  for (const Array& part : parts)
    bounds.emplace_back(part.shape(), std::vector<double>(part.values().size(), number_in(json)));
  return bounds;
}

TensorSummary summary_in(const JsonValue& json, double bound) {
  const JsonValue norms = member(json, "norms");
  TensorSummary s;
  s.shapes = list_of(member(json, "shapes"), shape_in);
  if (const auto sha256 = json.member("sha256")) s.sha256 = text_in(*sha256);
  s.l1 = number_in(member(norms, "l1"));
  s.l2 = number_in(member(norms, "l2"));
  s.max = number_in(member(norms, "max"));
  s.first = numbers(member(json, "first"));
  s.bound = bound;
  return s;
}

GradientRecord gradient(const JsonValue& json) {
  GradientRecord g;
  g.input = json.key();
  g.layout = text_in(member(json, "layout"));
  const JsonValue bound = member(json, "bound");
  if (const auto summary = json.member("summary")) {
    g.summary = summary_in(*summary, number_in(bound));
    return g;
  }
  const bool local = g.layout == "local";
  g.parts = tensors(member(json, local ? "by_rank" : "full"), local);
  g.bounds = bounds_of(bound, g.parts, local);
  return g;
}

CaseRecord case_record(const JsonValue& json) {
  CaseRecord c;
  c.objective = text_in(member(json, "objective"));
  c.world_size = static_cast<int>(integer_in(member(json, "world_size")));
  const JsonValue dtype = member(json, "dtype");
  if (const auto known = dtype_named(text_in(dtype)))
    c.dtype = *known;
  else
    refuse(dtype, "an unknown dtype");
  c.losses = numbers(member(json, "losses"));
  const JsonValue bound = member(json, "loss_bound");
  c.loss_bounds =
      bound.is_list() ? numbers(bound) : std::vector<double>(c.losses.size(), number_in(bound));
  if (c.loss_bounds.size() != c.losses.size())
    refuse(bound, "bounds that are not shaped as the values");
  const JsonValue gradients = member(json, "gradients");
  if (gradients.kind() == JsonKind::kNull) {
    c.why = text_in(member(json, "why"));
    if (c.why.empty()) refuse(json, "no gradients, and no reason why");
    return c;
  }
  if (!gradients.is_object()) refuse(gradients, "not an object where one belongs");
  for (const JsonValue& value : gradients.children()) c.gradients.push_back(gradient(value));
  return c;
}

GoldenFile file_in(const JsonValue& json) {
  const auto format = json.member("format"), sha256 = json.member("scenario_sha256");
  if (!sha256 || !format || !format->is_number() || format->integer() != 1)
    refuse(json, "not a golden file of format 1");
  return {text_in(*sha256), list_of(member(json, "cases"), case_record)};
}

}  // namespace

GoldenFile parse_golden(std::string_view text, const std::string& where) {
  std::vector<JsonProblem> problems;
  const JsonTree tree(text, problems);
  const auto refused = [&](const SourcePosition& at, const std::string& why) {
    return UserError(fmt::format("{}:{}:{}: {}", where, at.line, at.column, why));
  };
  if (!problems.empty()) throw refused(problems.front().position, problems.front().message);
  try {
    return file_in(*tree.root());
  } catch (const Unreadable& e) {
    throw refused(e.position, e.why);
  }
}

}  // namespace distgrad::golden
