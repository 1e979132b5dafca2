#include "report/html_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "model/dtype.h"
#include "model/ranks_text.h"
#include "model/values_json.h"
#include "report/heat_map.h"
#include "report/objectives_table.h"
#include "report/valid_text.h"
#include "report/words.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kInputs = 12;         // shown with their tables
constexpr std::size_t kCells = 1024;        // of all heat maps of a case, about
constexpr std::size_t kOutputBytes = 4096;  // of a rank, the last
constexpr std::size_t kOutputRanks = 16;
constexpr std::size_t kMessageBytes = 16384;
constexpr std::size_t kLosses = 64;
constexpr std::size_t kNotesOfAKind = 40;  // of each kind: warnings, bounds, composed collectives
constexpr int kDigits = 9;

// Returns the number with as few digits as a reader wants.
Json rounded(double v, int digits) {
  return std::isfinite(v) ? Json(std::strtod(number_text(v, digits).c_str(), nullptr))
                          : number_json(v);
}

Json first_losses(const std::vector<double>& losses) {
  return numbers_json(std::span(losses).first(std::min(losses.size(), kLosses)));
}

// --- What was expected and what was seen ---

std::string expected_text(const Expectation& e) {
  std::string text(name_of(e.verdict));
  if (!e.finding.empty()) text += fmt::format(": {}", e.finding.text());
  if (!e.collective.empty()) text += " in " + e.collective;
  if (!e.message.empty()) text += fmt::format(" with \"{}\" in its message", e.message);
  if (!e.gradients.empty()) text += ", and gradients that the file gives";
  return text;
}

// Returns the two matrices for pictures, or null if they are too large for a page.
Json matrices_json(const Measured& m) {
  constexpr std::size_t kMostNumbers = 4096;
  if (!m.matrices || m.matrices->measured.size() > kMostNumbers) return nullptr;
  const auto all = [](const std::vector<double>& values) {
    Json list = Json::array();
    for (const double v : values) list.push_back(rounded(v, kDigits));
    return list;
  };
  return {{"ranks", m.ranks},
          {"rows", m.matrices->rows},
          {"columns", m.matrices->columns},
          {"measured", all(m.matrices->measured)},
          {"right", all(m.matrices->right)}};
}

Json findings_json(const CaseResult& r, SharedTexts& texts) {
  Json findings = Json::array();
  for (const Finding& f : r.findings) {
    Json finding = {{"rule", f.rule.text()},
                    {"step", f.step},
                    {"collective", f.collective},
                    {"ranks", f.ranks.empty() ? "" : ranks_text(f.ranks)},
                    {"factor", f.factor ? Json(ratio_text(*f.factor)) : Json(nullptr)},
                    {"text", texts.add(f.text)}};
    if (f.measured)
      finding["measured"] = {{"formula", texts.add(short_formula(f.measured->formula))},
                             {"right", texts.add(short_formula(f.measured->right))},
                             {"shown_by", f.measured->shown_by},
                             {"matrices", matrices_json(*f.measured)}};
    findings.push_back(std::move(finding));
  }
  return findings;
}

// --- Its inputs ---

// Returns inputs that differ before the others.
std::vector<const GradientComparison*> shown_inputs(const CaseResult& r) {
  std::vector<const GradientComparison*> shown;
  for (const bool equal : {false, true})
    for (const GradientComparison& g : r.gradients)
      if (g.equal == equal && shown.size() < kInputs) shown.push_back(&g);
  return shown;
}

Json table_json(const ObjectivesTable& table, SharedTexts& texts) {
  Json rows = Json::array();
  for (const ObjectivesTable::Row& row : table.rows)
    rows.push_back({row.label, row.cells, texts.add(row.note)});
  return {{"title", table.title},
          {"columns", table.columns},
          {"rows", std::move(rows)},
          {"remark", texts.add(table.remark)}};
}

// Writes lists by column of the map: element, observed, truth, error, bound, whether it is off.
Json row_json(const HeatRow& row) {
  Json out = {{"label", row.label}};
  if (!row.lacking.empty()) {
    out["lacking"] = row.lacking;
    return out;
  }
  Json element = Json::array(), observed = Json::array(), truth = Json::array(),
       error = Json::array(), bound = Json::array(), off = Json::array();
  bool has_bounds = false;
  for (const HeatCell& c : row.cells) {
    const bool tells =
        c.error == 0 || number_text(c.observed, kDigits) != number_text(c.truth, kDigits);
    element.push_back(c.element);
    observed.push_back(tells ? rounded(c.observed, kDigits) : number_json(c.observed));
    truth.push_back(tells ? rounded(c.truth, kDigits) : number_json(c.truth));
    error.push_back(rounded(c.error, 4));
    bound.push_back(std::isnan(c.bound) ? Json(nullptr) : rounded(c.bound, 3));
    off.push_back(c.is_off ? 1 : 0);
    has_bounds = has_bounds || c.bound != 0;
  }
  out["shape"] = row.shape;
  if (row.block > 1) {
    out["block"] = row.block;
    out["element"] = std::move(element);
  }
  out["observed"] = std::move(observed);
  out["truth"] = std::move(truth);
  out["error"] = std::move(error);
  if (has_bounds) out["bound"] = std::move(bound);
  out["off"] = std::move(off);
  return out;
}

Json map_json(const HeatMap& map) {
  Json rows = Json::array();
  for (const HeatRow& row : map.rows) rows.push_back(row_json(row));
  Json out = {{"rows", std::move(rows)},
              {"all_rows", map.all_rows},
              {"largest_truth", rounded(map.largest_truth, 4)}};
  if (!map.differing_ranks.empty()) out["differing"] = ranks_text(map.differing_ranks);
  return out;
}

Json inputs_json(const CaseResult& r, bool maps, Json& left_out, SharedTexts& texts) {
  Json inputs = Json::array();
  const auto shown = shown_inputs(r);
  const auto unlike = static_cast<std::size_t>(std::count_if(
      shown.begin(), shown.end(), [](const GradientComparison* g) { return !g->equal; }));
  for (const GradientComparison* g : shown) {
    Json input = {
        {"name", g->input},
        {"layout", g->layout},
        {"equal", g->equal},
        {"table", table_json(objectives_rows(*g, {.declared = spelled(r.which.objective)}), texts)},
        {"max_abs_error", rounded(g->max_abs_error, 6)},
        {"max_rel_error", rounded(g->max_rel_error, 6)},
        {"bound", rounded(g->bound, 6)}};
    // A match has nothing to see in a map.
    if (!g->equal && maps)
      input["map"] = map_json(heat_map(*g, kCells / std::max<std::size_t>(unlike, 1)));
    inputs.push_back(std::move(input));
  }
  if (shown.size() < r.gradients.size())
    left_out.push_back(texts.add(fmt::format("{} of {} inputs are shown, those that differ first.",
                                             shown.size(), r.gradients.size())));
  return inputs;
}

// --- The way through the program ---

Json cells_json(const std::vector<TraceCell>& cells) {
  Json truth = Json::array(), observed = Json::array(), furthest = Json::array();
  bool differs = false, is_far = false;
  for (const TraceCell& cell : cells) {
    truth.push_back(cell.truth);
    observed.push_back(cell.observed.empty() ? Json(nullptr) : Json(cell.observed));
    furthest.push_back(cell.furthest);
    differs = differs || !cell.observed.empty();
    is_far = is_far || !cell.furthest.empty();
  }
  const bool all_same =
      std::all_of(truth.begin(), truth.end(), [&](const Json& t) { return t == truth[0]; });
  Json out = {{"truth", all_same && !truth.empty() ? Json(truth[0]) : truth}};
  if (differs) out["observed"] = std::move(observed);
  if (is_far) out["furthest"] = std::move(furthest);
  return out;
}

Json trace_json(const ValueTrace& trace, SharedTexts& texts) {
  constexpr std::string_view kKinds[] = {"input", "step", "loss"};
  Json rows = Json::array(), remarks = Json::array();
  for (const TraceRow& row : trace.rows) {
    Json out = {{"kind", kKinds[static_cast<std::size_t>(row.kind)]},
                {"title", valid_text(row.title)}};
    if (!row.mark.empty()) out["mark"] = texts.add(row.mark);
    if (!row.values.empty()) out["values"] = cells_json(row.values);
    if (!row.cotangents.empty()) out["cotangents"] = cells_json(row.cotangents);
    rows.push_back(std::move(out));
  }
  for (const std::string& remark : trace.remarks) remarks.push_back(texts.add(remark));
  return {{"ranks", trace.ranks},
          {"world_size", trace.world_size},
          {"how_known", trace.how_known},
          {"rows", std::move(rows)},
          {"remarks", std::move(remarks)},
          {"parting", texts.add(trace.parting)},
          {"measured", texts.add(trace.measured)}};
}

// --- What the ranks said ---

std::string tail_of(const std::string& text, std::size_t most, bool& is_cut) {
  is_cut = text.size() > most;
  return valid_text(is_cut ? text.substr(text.size() - most) : text);
}

Json output_json(const CaseResult& r, Json& left_out, SharedTexts& texts) {
  Json output = Json::array();
  std::size_t silent = 0;
  for (std::size_t rank = 0; rank < r.output.size(); ++rank) {
    if (r.output[rank].empty()) {
      ++silent;
      continue;
    }
    if (output.size() == kOutputRanks) break;
    bool is_cut = false;
    const std::string text = tail_of(r.output[rank], kOutputBytes, is_cut);
    output.push_back({{"rank", rank}, {"text", texts.add(text)}, {"cut", is_cut}});
  }
  if (output.size() + silent < r.output.size())
    left_out.push_back(texts.add(fmt::format("The output of {} ranks is shown.", output.size())));
  return output;
}

// Writes the same words of several ranks once.
Json warnings_json(const CaseResult& r, Json& left_out, SharedTexts& texts) {
  std::vector<std::pair<std::string, std::vector<int>>> by_text;
  for (const Warning& w : r.warnings) {
    auto found = std::find_if(by_text.begin(), by_text.end(),
                              [&](const auto& e) { return e.first == w.text; });
    if (found == by_text.end()) found = by_text.insert(found, {w.text, {}});
    if (std::find(found->second.begin(), found->second.end(), w.rank) == found->second.end())
      found->second.push_back(w.rank);
  }
  Json warnings = Json::array();
  for (const auto& [text, ranks] : by_text) {
    if (warnings.size() == kNotesOfAKind) break;
    warnings.push_back({ranks_text(ranks), texts.add(text.substr(0, kMessageBytes))});
  }
  if (warnings.size() < by_text.size())
    left_out.push_back(
        texts.add(fmt::format("{} of {} warnings are shown.", warnings.size(), by_text.size())));
  return warnings;
}

Json lines_json(const std::vector<std::string>& lines, SharedTexts& texts) {
  Json list = Json::array();
  for (std::size_t i = 0; i < std::min(lines.size(), kNotesOfAKind); ++i)
    list.push_back(texts.add(lines[i]));
  if (lines.size() > kNotesOfAKind)
    list.push_back(texts.add(fmt::format("... and {} more", lines.size() - kNotesOfAKind)));
  return list;
}

Json error_json(const RankError& e, SharedTexts& texts) {
  bool is_cut = false;
  const std::string message = tail_of(e.message, kMessageBytes, is_cut);
  return {{"kind", name_of(e.kind)},
          {"rank", e.rank},
          {"step", e.step},
          {"message", texts.add(message)},
          {"cut", is_cut}};
}

void put(Json& out, const char* key, Json value) {
  if (!value.empty()) out[key] = std::move(value);
}

}  // namespace

Json html_case(const CaseResult& r, const Pictures& pictures, SharedTexts& texts) {
  const Case& c = r.which;
  Json left_out = Json::array();
  Json out = {{"backend", c.backend},
              {"world_size", c.world_size},
              {"dtype", traits(c.dtype).name},
              {"objective", spelled(c.objective)},
              {"expected", texts.add(expected_text(c.expected))}};
  if (!r.why.empty()) out["why"] = texts.add(r.why);
  if (r.error) out["error"] = error_json(*r.error, texts);
  put(out, "findings", findings_json(r, texts));
  put(out, "inputs", inputs_json(r, pictures.maps, left_out, texts));
  if (pictures.trace) out["trace"] = trace_json(*pictures.trace, texts);
  put(out, "simulated", first_losses(r.simulated_losses));
  if (r.distributed_losses != r.simulated_losses)
    put(out, "distributed", first_losses(r.distributed_losses));
  put(out, "warnings", warnings_json(r, left_out, texts));
  put(out, "output", output_json(r, left_out, texts));
  put(out, "notes", lines_json(r.notes, texts));
  put(out, "composed", lines_json(r.composed, texts));
  put(out, "bounds", lines_json(r.bound_notes, texts));
  put(out, "left_out", std::move(left_out));
  return out;
}

}  // namespace distgrad
