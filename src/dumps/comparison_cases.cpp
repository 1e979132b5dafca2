#include "dumps/comparison_cases.h"

#include <algorithm>
#include <utility>

#include "dumps/comparison_report.h"
#include "model/ranks_text.h"
#include "report/source_place.h"
#include "report/summary.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

using Tone = Picture::Tone;

constexpr int kMostColumns = 64;  // ranks that a picture shows

std::string sentence(const std::string& text) {
  return text.empty() || text.ends_with('.') ? text : text + ".";
}

// Describes the difference in numbers; the files are too large for whole tensors.
GradientComparison gradient_of(const ParameterResult& r) {
  GradientComparison g;
  g.input = r.name;
  g.layout = "local";
  for (const auto& [axis, placement] : r.placements)
    g.layout += (g.layout == "local" ? ": " : ", ") + axis + "=" + placement;
  g.max_abs_error = r.max_abs_error;
  g.max_rel_error = r.relative_error;
  g.equal = !r.is_wrong();
  g.differing_ranks = r.ranks;
  return g;
}

Finding finding_of(const ParameterResult& r) {
  std::string text = sentence(r.headline);
  if (const std::string advice = advice_of(r); !advice.empty()) text += " " + advice;
  if (r.worst) text += " " + sentence(worst_text(r));
  return {.rule = r.finding.empty() ? FindingName("unexplained") : r.finding,
          .collective = {},
          .step = {},
          .ranks = r.ranks,
          .factor = r.factor,
          .text = text};
}

CaseResult case_of(const ParameterResult& r, const DumpComparison& c, const Scenario& files) {
  CaseResult result;
  result.which.scenario = &files;
  result.which.id = files.file + ":" + r.name;
  result.which.subject = files.file;
  result.which.world_size = std::max(1, c.world_size);
  result.which.dtype = r.dtype;
  result.gradients = {gradient_of(r)};
  result.notes = r.notes;
  if (r.explanation == Explanation::kUnclear) {
    result.verdict = Verdict::kDisputed;
    result.why = r.headline;
    result.as_expected = false;  // nobody is blamed, and nothing is known to be right
    return result;
  }
  result.as_expected = !r.is_wrong();
  if (!r.is_wrong()) return result;
  result.verdict = Verdict::kMismatch;
  result.findings = {finding_of(r)};
  return result;
}

Picture::Square square_of(const ParameterResult& r, int rank) {
  const bool is_blamed =
      r.ranks.empty() || std::find(r.ranks.begin(), r.ranks.end(), rank) != r.ranks.end();
  if (r.explanation == Explanation::kUnclear) return {"?", Tone::kUnclear, r.headline};
  if (!r.is_wrong() || !is_blamed) return {"", Tone::kRight, "right"};
  return {"", Tone::kWrong, r.headline};
}

Picture picture_of(const DumpComparison& c) {
  Picture picture;
  const int ranks = c.world_size > kMostColumns ? 0 : c.world_size;
  picture.title = ranks > 0 ? "Parameters by ranks" : "Parameters";
  picture.legend =
      "In the order of the model, where it is known. Red: the rank's gradient is wrong; ?: it "
      "cannot be judged.";
  for (int rank = 0; rank < ranks; ++rank) picture.columns.push_back(std::to_string(rank));
  picture.columns.emplace_back("which means that");
  std::vector<const ParameterResult*> rows;  // wrong parameters must be among those shown
  for (const ParameterResult& r : c.parameters) rows.push_back(&r);
  constexpr std::size_t kMostRows = 200;
  if (rows.size() > kMostRows)
    std::stable_partition(rows.begin(), rows.end(), [](const auto* r) { return r->is_wrong(); });
  for (const ParameterResult* r : rows) {
    Picture::Row row{r->name, {}};
    for (int rank = 0; rank < ranks; ++rank) row.squares.push_back(square_of(*r, rank));
    row.squares.push_back({r->is_right() ? "" : r->headline, Tone::kNone, ""});
    picture.rows.push_back(std::move(row));
  }
  return picture;
}

// Makes what leaves the whole comparison undecided a case of its own.
CaseResult case_of_all(const Scenario& files, const std::string& name, const std::string& why,
                       bool strict) {
  CaseResult result;
  result.which.scenario = &files;
  result.which.id = files.file + ":" + name;
  result.which.subject = files.file;
  result.verdict = Verdict::kDisputed;
  result.why = why;
  if (strict) result.as_expected = false;
  return result;
}

}  // namespace

ComparisonCases comparison_cases(const DumpComparison& c, bool strict, const std::string& place) {
  ComparisonCases made;
  Scenario& files = made.files[c.observed];
  files = scenario_at(place, c.observed);
  made.report.unit = "parameter";
  for (const ParameterResult& r : c.parameters) made.report.cases.push_back(case_of(r, c, files));
  if (!c.vacuous.empty())
    made.report.cases.push_back(case_of_all(files, "vacuous", "vacuous: " + c.vacuous, strict));
  if (!c.absent_ranks.empty())
    made.report.cases.push_back(
        case_of_all(files, "files", "there is no file of " + ranks_text(c.absent_ranks), strict));
  made.report.picture = picture_of(c);
  made.report.summary = summary_of(made.report.cases);
  return made;
}

}  // namespace distgrad::dumps
