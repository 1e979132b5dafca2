// Parses golden files.
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_depth.h"
#include "golden/golden_file.h"

namespace distgrad::golden {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDeepest = 100;  // more than enough, as tensors have at most 64 dimensions

// Says what is wrong with the file, without naming it.
struct Unreadable {
  std::string why;
};

const Json& member(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) throw Unreadable{fmt::format("no \"{}\"", key)};
  return object[key];
}

double number(const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  throw Unreadable{"not a number where one belongs"};
}

std::vector<double> numbers(const Json& list) {
  if (!list.is_array()) throw Unreadable{"not a list where one belongs"};
  std::vector<double> values;
  for (const Json& item : list) values.push_back(number(item));
  return values;
}

void flatten(const Json& json, const Shape& shape, std::size_t dim, std::vector<double>& out) {
  if (dim == shape.size()) {
    out.push_back(number(json));
    return;
  }
  if (!json.is_array() || json.size() != static_cast<std::size_t>(shape[dim]))
    throw Unreadable{"a ragged tensor"};
  for (const Json& item : json) flatten(item, shape, dim + 1, out);
}

Array tensor(const Json& json) {
  if (json.is_object()) {
    auto shape = member(json, "shape").get<Shape>();
    if (element_count(shape) != 0) throw Unreadable{"a shape without the elements"};
    return Array(std::move(shape), {});
  }
  Shape shape;
  for (const Json* level = &json; level->is_array(); level = &level->front()) {
    if (level->empty()) throw Unreadable{"an empty list"};
    shape.push_back(static_cast<std::int64_t>(level->size()));
  }
  std::vector<double> values;
  flatten(json, shape, 0, values);
  return Array(std::move(shape), std::move(values));
}

std::vector<Array> tensors(const Json& json, bool local) {
  if (!local) return {tensor(json)};
  if (!json.is_array()) throw Unreadable{"not a list where one belongs"};
  std::vector<Array> parts;
  for (const Json& part : json) parts.push_back(tensor(part));
  return parts;
}

std::vector<Array> bounds_of(const Json& json, const std::vector<Array>& parts, bool local) {
  std::vector<Array> bounds;
  if (json.is_array()) {
    bounds = tensors(json, local);
    if (bounds.size() != parts.size()) throw Unreadable{"bounds that are not shaped as the values"};
    for (std::size_t p = 0; p < parts.size(); ++p)
      if (bounds[p].shape() != parts[p].shape())
        throw Unreadable{"bounds that are not shaped as the values"};
    return bounds;
  }
  for (const Array& part : parts)
    bounds.emplace_back(part.shape(), std::vector<double>(part.values().size(), number(json)));
  return bounds;
}

TensorSummary summary_in(const Json& json, double bound) {
  const Json& norms = member(json, "norms");
  TensorSummary s;
  s.shapes = member(json, "shapes").get<std::vector<Shape>>();
  if (json.contains("sha256")) s.sha256 = json["sha256"].get<std::string>();
  s.l1 = number(member(norms, "l1"));
  s.l2 = number(member(norms, "l2"));
  s.max = number(member(norms, "max"));
  s.first = numbers(member(json, "first"));
  s.bound = bound;
  return s;
}

GradientRecord gradient(const std::string& input, const Json& json) {
  GradientRecord g;
  g.input = input;
  g.layout = member(json, "layout").get<std::string>();
  const Json& bound = member(json, "bound");
  if (json.contains("summary")) {
    g.summary = summary_in(json["summary"], number(bound));
    return g;
  }
  const bool local = g.layout == "local";
  g.parts = tensors(member(json, local ? "by_rank" : "full"), local);
  g.bounds = bounds_of(bound, g.parts, local);
  return g;
}

CaseRecord case_record(const Json& json) {
  CaseRecord c;
  c.objective = member(json, "objective").get<std::string>();
  c.world_size = member(json, "world_size").get<int>();
  const auto dtype = dtype_named(member(json, "dtype").get<std::string>());
  if (!dtype) throw Unreadable{"an unknown dtype"};
  c.dtype = *dtype;
  c.losses = numbers(member(json, "losses"));
  const Json& bound = member(json, "loss_bound");
  c.loss_bounds =
      bound.is_array() ? numbers(bound) : std::vector<double>(c.losses.size(), number(bound));
  if (c.loss_bounds.size() != c.losses.size())
    throw Unreadable{"bounds that are not shaped as the values"};
  const Json& gradients = member(json, "gradients");
  if (gradients.is_null()) {
    c.why = member(json, "why").get<std::string>();
    if (c.why.empty()) throw Unreadable{"no gradients, and no reason why"};
    return c;
  }
  for (const auto& [input, value] : gradients.items())
    c.gradients.push_back(gradient(input, value));
  return c;
}

}  // namespace

GoldenFile parse_golden(std::string_view text, const std::string& where) {
  try {
    if (is_nested_deeper(text, kDeepest)) throw Unreadable{"it is nested too deeply"};
    const Json json = Json::parse(text.begin(), text.end());
    if (!json.is_object() || !json.contains("scenario_sha256") || member(json, "format") != 1)
      throw Unreadable{"not a golden file of format 1"};
    GoldenFile file;
    file.scenario_sha256 = json["scenario_sha256"].get<std::string>();
    for (const Json& item : member(json, "cases")) file.cases.push_back(case_record(item));
    return file;
  } catch (const Unreadable& e) {
    throw UserError(fmt::format("{}: cannot be read as a golden file: {}", where, e.why));
  } catch (const Json::parse_error& e) {
    throw UserError(fmt::format("{}: not JSON, at byte {}", where, e.byte));
  } catch (const Json::exception&) {
    throw UserError(
        fmt::format("{}: cannot be read as a golden file: a value of another type than "
                    "belongs there",
                    where));
  }
}

}  // namespace distgrad::golden
