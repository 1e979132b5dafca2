#include "report/json.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "base/version.h"
#include "model/distance.h"
#include "model/dtype.h"
#include "model/element_index.h"
#include "model/values_json.h"
#include "report/words.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;
using Part = std::optional<Array>;

constexpr std::int64_t kSummarisedAbove = 1000;  // elements
constexpr std::size_t kWorstElements = 10;

// --- Values ---

// Lists the elements furthest from `other`'s or, without one of the same shape, those largest in
// magnitude.
Json worst_elements(const Array& array, const Array* other) {
  if (other != nullptr && other->shape() != array.shape()) other = nullptr;
  // It has the worst so far, the worst of all first; among equals the first element comes first.
  std::vector<std::pair<double, std::int64_t>> elements;
  for (std::int64_t i = 0; i < array.size(); ++i) {
    const double d = distance(array[i], other ? (*other)[i] : 0);
    if (elements.size() == kWorstElements && d <= elements.back().first) continue;
    const auto place = std::find_if(elements.begin(), elements.end(),
                                    [&](const auto& known) { return known.first < d; });
    elements.emplace(place, d, i);
    if (elements.size() > kWorstElements) elements.pop_back();
  }
  Json worst = Json::array();
  for (const auto& [error, element] : elements) {
    Json entry = {{"index", index_of(array.shape(), element)},
                  {"value", number_json(array[element])}};
    if (other) entry["abs_error"] = number_json(error);
    worst.push_back(std::move(entry));
  }
  return worst;
}

Json summarised(const Array& array, const Array* other) {
  double l1 = 0, squares = 0, largest = 0;
  for (const double value : array.values()) {
    l1 += std::abs(value);
    squares += value * value;
    largest = std::isnan(value) || std::isnan(largest) ? NAN : std::max(largest, std::abs(value));
  }
  return {{"shape", array.shape()},
          {"norms",
           {{"l1", number_json(l1)},
            {"l2", number_json(std::sqrt(squares))},
            {"max", number_json(largest)}}},
          {"worst", worst_elements(array, other)}};
}

Json tensor(const Part& part, const Part* other, bool full) {
  if (!part) return nullptr;
  if (part->size() > kSummarisedAbove && !full)
    return summarised(*part, other != nullptr && *other ? &**other : nullptr);
  return nested_json(*part);
}

// Puts part i beside part i of the other side, or beside its only part.
Json tensors(const std::vector<Part>& parts, const std::vector<Part>& others, bool full) {
  Json list = Json::array();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part* other = i < others.size() ? &others[i] : others.size() == 1 ? &others[0] : nullptr;
    list.push_back(tensor(parts[i], other, full));
  }
  return list;
}

// --- A case ---

Json truth_json(const GradientComparison& g, bool full) {
  if (!g.truth_full) return {{"by_rank", tensors(g.truth_by_rank, g.observed_by_rank, full)}};
  const Part* other = g.observed_full ? &g.observed_full
                      : g.observed_by_rank.empty()
                          ? nullptr
                          : &g.observed_by_rank[g.first_difference ? g.first_difference->rank : 0];
  return {{"full", tensor(g.truth_full, other, full)}};
}

Json observed_json(const GradientComparison& g, bool full) {
  if (g.observed_by_rank.empty()) return nullptr;  // no ranks ran, or they did not get that far
  // Values that are joined or summed before they are compared have no truth by rank beside them.
  const std::vector<Part> truth = g.observed_full ? std::vector<Part>{}
                                  : g.truth_full  ? std::vector<Part>{g.truth_full}
                                                  : g.truth_by_rank;
  Json out = {{"by_rank", tensors(g.observed_by_rank, truth, full)}};
  if (g.observed_full) out["full"] = tensor(g.observed_full, &g.truth_full, full);
  return out;
}

Json gradient_json(const GradientComparison& g, bool full) {
  Json matches = Json::object();
  for (const auto& [objective, equal] : g.matches) matches[objective] = equal;
  Json place = nullptr;
  if (g.first_difference)
    place = {{"rank", g.first_difference->rank}, {"index", g.first_difference->index}};
  return {{"layout", g.layout},
          {"truth", truth_json(g, full)},
          {"observed", observed_json(g, full)},
          {"matches", std::move(matches)},
          {"max_abs_error", number_json(g.max_abs_error)},
          {"max_rel_error", number_json(g.max_rel_error)},
          {"bound", number_json(g.bound)},
          {"first_difference", std::move(place)}};
}

}  // namespace

Json expectation_json(const Expectation& e) {
  Json out = {{"verdict", name_of(e.verdict)}};
  if (!e.finding.empty()) out["finding"] = e.finding.text();
  if (!e.collective.empty()) out["collective"] = e.collective;
  if (!e.gradients.empty()) {
    Json gradients = Json::object();
    for (const auto& [input, by_rank] : e.gradients) gradients[input] = tensors(by_rank, {}, true);
    out["gradients"] = std::move(gradients);
  }
  if (!e.message.empty()) out["message"] = e.message;
  return out;
}

namespace {

Json matrices_json(const Measured::Matrices& m) {
  const std::size_t columns =
      static_cast<std::size_t>(std::accumulate(m.columns.begin(), m.columns.end(), 0));
  const auto rows = [&](const std::vector<double>& numbers) {
    Json all = Json::array();
    for (std::size_t at = 0; at < numbers.size(); at += columns)
      all.push_back(numbers_json(std::span(numbers).subspan(at, columns)));
    return all;
  };
  return {{"rows", m.rows},
          {"columns", m.columns},
          {"measured", rows(m.measured)},
          {"right", rows(m.right)}};
}

}  // namespace

Json measured_json(const Measured& m) {
  Json coefficients = nullptr;
  for (const std::vector<double>& row : m.coefficients) {
    if (coefficients.is_null()) coefficients = Json::array();
    coefficients.push_back(numbers_json(row));
  }
  return {{"formula", m.formula},
          {"right", m.right},
          {"linear", m.linear},
          {"shown_by", m.shown_by},
          {"ranks", m.ranks},
          {"coefficients", std::move(coefficients)},
          {"matrices", m.matrices ? matrices_json(*m.matrices) : Json(nullptr)}};
}

namespace {

Json finding_json(const Finding& f) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  Json out = {{"rule", f.rule.text()},
              {"collective", or_null(f.collective)},
              {"step", or_null(f.step)},
              {"ranks", f.ranks},
              {"factor", f.factor ? number_json(*f.factor) : Json(nullptr)},
              {"text", f.text}};
  if (f.measured) out["measured"] = measured_json(*f.measured);
  return out;
}

Json error_json(const RankError& e) {
  return {{"kind", name_of(e.kind)},
          {"rank", e.rank >= 0 ? Json(e.rank) : Json(nullptr)},
          {"step", e.step.empty() ? Json(nullptr) : Json(e.step)},
          {"message", e.message}};
}

Json case_json(const CaseResult& r, bool full) {
  const Case& c = r.which;
  Json gradients = Json::object();
  for (const GradientComparison& g : r.gradients) gradients[g.input] = gradient_json(g, full);
  Json findings = Json::array();
  for (const Finding& f : r.findings) findings.push_back(finding_json(f));
  Json warnings = Json::array();
  for (const Warning& w : r.warnings) warnings.push_back({{"rank", w.rank}, {"text", w.text}});
  const auto losses = [](const std::vector<double>& l) {
    return l.empty() ? Json(nullptr) : numbers_json(l);
  };
  Json out = {{"id", c.id},
              {"file", c.scenario ? c.scenario->file : ""},
              {"name", c.scenario ? c.scenario->name : ""},
              {"subject", c.subject},
              {"backend", c.backend},
              {"world_size", c.world_size},
              {"dtype", traits(c.dtype).name},
              {"objective", spelled(c.objective)},
              {"device", c.device},
              {"verdict", name_of(r.verdict)},
              {"expected", expectation_json(c.expected)},
              {"as_expected", r.as_expected ? Json(*r.as_expected) : Json(nullptr)},
              {"why", r.why}};
  if (c.device == "cpu") out.erase("device");
  if (r.error) out["error"] = error_json(*r.error);
  out["losses"] = {{"simulated", losses(r.simulated_losses)},
                   {"distributed", losses(r.distributed_losses)}};
  out["gradients"] = std::move(gradients);
  out["findings"] = std::move(findings);
  out["warnings"] = std::move(warnings);
  out["composed"] = r.composed;
  out["notes"] = r.notes;
  if (std::any_of(r.output.begin(), r.output.end(), [](const auto& text) { return !text.empty(); }))
    out["output"] = r.output;
  out["elapsed_s"] = number_json(r.elapsed_s);
  return out;
}

// --- Text ---

// Replaces bytes that are not UTF-8, which a rank's output and file names may hold.
std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Appends `json` on one line, with a space after each comma and colon. Returns false if that
// exceeds `width`.
bool append_line(std::string& out, const Json& json, std::size_t width) {
  const bool object = json.is_object();
  if (!object && !json.is_array()) {
    out += dumped(json);
    return out.size() <= width;
  }
  out += object ? '{' : '[';
  bool first = true;
  for (auto item = json.begin(); item != json.end(); ++item) {
    out += first ? (object ? " " : "") : ", ";
    first = false;
    if (object) out += dumped(item.key()) + ": ";
    if (!append_line(out, *item, width)) return false;
  }
  out += object ? (first ? "}" : " }") : "]";
  return out.size() <= width;
}

void append(std::string& out, const Json& json, std::size_t indent, std::size_t column) {
  constexpr std::size_t kWidth = 120;
  std::string line;
  if (!json.is_structured() || json.empty() ||
      append_line(line, json, kWidth - std::min(column, kWidth))) {
    out += line.empty() ? dumped(json) : line;
    return;
  }
  const std::string spaces(indent + 2, ' ');
  out += json.is_object() ? "{\n" : "[\n";
  bool first = true;
  for (auto item = json.begin(); item != json.end(); ++item) {
    out += first ? spaces : ",\n" + spaces;
    first = false;
    const std::string key = json.is_object() ? dumped(item.key()) + ": " : "";
    out += key;
    append(out, *item, indent + 2, indent + 2 + key.size());
  }
  out += "\n" + std::string(indent, ' ') + (json.is_object() ? "}" : "]");
}

// Makes the report without cases, which come last.
Json frame_json(const Report& report, const JsonReportOptions& options) {
  const Summary& sum = report.summary;
  Json invalid = Json::array();
  for (const InvalidFile& f : report.invalid)
    invalid.push_back({{"file", f.file},
                       {"line", f.position.line},
                       {"column", f.position.column},
                       {"pointer", f.pointer},
                       {"message", f.message}});
  Json tool = {{"name", "distgrad"},
               {"version", kVersion},
               {"torch", report.torch.empty() ? Json(nullptr) : Json(report.torch)},
               {"host", options.host}};
  if (!options.hosts.empty()) tool["hosts"] = options.hosts;
  if (!options.mesh_order.empty()) tool["mesh_order"] = options.mesh_order;
  return {{"format", 1},
          {"tool", std::move(tool)},
          {"command", report.command},
          {"summary",
           {{"cases", sum.cases},
            {"as_expected", sum.as_expected},
            {"not_as_expected", sum.not_as_expected},
            {"broken", sum.broken},
            {"skipped", sum.skipped},
            {"disputed", sum.disputed},
            {"elapsed_s", number_json(sum.elapsed_s)}}},
          {"invalid", std::move(invalid)},
          {"cases", Json::array()}};
}

}  // namespace

std::string json_text(const Json& json) {
  std::string out;
  append(out, json, 0, 0);
  return out + "\n";
}

std::string json_report_text(const Report& report, const JsonReportOptions& options) {
  constexpr std::string_view kEnd = "]\n}\n";
  std::string out = json_text(frame_json(report, options));
  if (report.cases.empty()) return out;
  // Writes one case at a time, since JSON values for all of them take several times the memory of
  // the text.
  out.resize(out.size() - kEnd.size());
  const char* separator = "\n    ";
  for (const CaseResult& r : report.cases) {
    out += std::exchange(separator, ",\n    ");
    append(out, case_json(r, options.full), 4, 4);
  }
  return out.append("\n  ").append(kEnd);
}

}  // namespace distgrad
