// Writes golden files.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "golden/golden_file.h"
#include "golden/number.h"
#include "model/values_json.h"

namespace distgrad::golden {
namespace {

using Json = nlohmann::ordered_json;

bool is_zero(double x) { return x == 0; }

bool all_zero(const GradientRecord& g) {
  if (g.summary) return g.summary->bound == 0;
  return std::all_of(g.bounds.begin(), g.bounds.end(), [](const Array& a) {
    return std::all_of(a.values().begin(), a.values().end(), is_zero);
  });
}

// Writes the shape of a tensor without elements, which nested lists would lose.
Json tensor(const Array& array) {
  if (array.size() == 0) return {{"shape", array.shape()}};
  return nested_json(array);
}

Json parts_json(const GradientRecord& g, const std::vector<Array>& parts) {
  if (g.layout != "local") return tensor(parts.at(0));
  Json list = Json::array();
  for (const Array& part : parts) list.push_back(tensor(part));
  return list;
}

// Writes one number where all elements have the same bound.
Json bound_json(const GradientRecord& g) {
  std::optional<double> one;
  for (const Array& bounds : g.bounds)
    for (const double bound : bounds.values()) {
      if (one && *one != bound) return parts_json(g, g.bounds);
      one = bound;
    }
  return number_json(one.value_or(0));
}

Json summary_json(const TensorSummary& s) {
  Json out = {{"shapes", s.shapes}};
  if (!s.sha256.empty()) out["sha256"] = s.sha256;
  out["norms"] = {
      {"l1", number_json(s.l1)}, {"l2", number_json(s.l2)}, {"max", number_json(s.max)}};
  out["first"] = numbers_json(s.first);
  return out;
}

Json gradient_json(const GradientRecord& g) {
  Json out = {{"layout", g.layout}};
  if (g.summary) {
    out["summary"] = summary_json(*g.summary);
    out["bound"] = number_json(g.summary->bound);
    return out;
  }
  out[g.layout == "local" ? "by_rank" : "full"] = parts_json(g, g.parts);
  out["bound"] = bound_json(g);
  return out;
}

Json loss_bound_json(const std::vector<double>& bounds) {
  const bool equal = std::all_of(bounds.begin(), bounds.end(),
                                 [&](double bound) { return bound == bounds.front(); });
  return equal ? number_json(bounds.empty() ? 0 : bounds.front()) : numbers_json(bounds);
}

Json case_json(const CaseRecord& c) {
  Json out = {{"objective", c.objective},         {"world_size", c.world_size},
              {"dtype", traits(c.dtype).name},    {"exact", is_exact(c)},
              {"losses", numbers_json(c.losses)}, {"loss_bound", loss_bound_json(c.loss_bounds)}};
  if (!c.why.empty()) {
    out["gradients"] = nullptr;
    out["why"] = c.why;
    return out;
  }
  Json gradients = Json::object();
  for (const GradientRecord& g : c.gradients) gradients[g.input] = gradient_json(g);
  out["gradients"] = std::move(gradients);
  return out;
}

// Writes a list without lists or objects in it on one line, all else with one line an item.
void append(std::string& out, const Json& json, std::size_t indent) {
  if (json.is_number_float()) {
    out += number_text(json.get<double>());
    return;
  }
  if (!json.is_structured() || json.empty()) {
    out += json.dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  const bool object = json.is_object();
  const bool row = !object && std::none_of(json.begin(), json.end(),
                                           [](const Json& item) { return item.is_structured(); });
  const std::string spaces = row ? "" : "\n" + std::string(indent + 2, ' ');
  out += object ? '{' : '[';
  bool first = true;
  for (auto item = json.begin(); item != json.end(); ++item) {
    if (!first) out += row ? ", " : ",";
    first = false;
    out += spaces;
    if (object) out += Json(item.key()).dump() + ": ";
    append(out, *item, indent + 2);
  }
  if (!row) out += "\n" + std::string(indent, ' ');
  out += object ? '}' : ']';
}

}  // namespace

std::string case_text(const CaseRecord& c) {
  return fmt::format("objective={},world_size={},dtype={}", c.objective, c.world_size,
                     traits(c.dtype).name);
}

bool is_exact(const CaseRecord& c) {
  return std::all_of(c.loss_bounds.begin(), c.loss_bounds.end(), is_zero) &&
         std::all_of(c.gradients.begin(), c.gradients.end(), all_zero);
}

std::string text_of(const GoldenFile& file) {
  Json cases = Json::array();
  for (const CaseRecord& c : file.cases) cases.push_back(case_json(c));
  const Json root = {
      {"format", 1}, {"scenario_sha256", file.scenario_sha256}, {"cases", std::move(cases)}};
  std::string out;
  append(out, root, 0);
  return out + "\n";
}

}  // namespace distgrad::golden
