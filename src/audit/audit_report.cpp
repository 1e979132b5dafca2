#include "audit/audit_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "audit/cell_text.h"
#include "model/subject_text.h"
#include "report/summary.h"

namespace distgrad {
namespace {

using Tone = Picture::Tone;

// Returns the case's result by the row's convention.
CaseResult judged_case(const TrialResult& t, const Judgement& j) {
  CaseResult r = t.result;
  // An audit does not run one case alone, so its name need not say how.
  r.which.id = r.which.scenario->file + ":" + j.function;
  const Outcome outcome = outcome_of(t);
  r.broken = false;
  r.as_expected = std::nullopt;
  if (is_judged(outcome)) r.as_expected = outcome == Outcome::kRight;
  // A case that dies in forward counts as wrong if the row is; otherwise the function may be right
  // for all that it accepts.
  if (!is_judged(outcome) && r.verdict == Verdict::kError && j.wrong) r.as_expected = false;
  if (!r.as_expected) {
    r.why = reason_of(t);
    if (outcome != Outcome::kDisputed) r.verdict = Verdict::kSkipped;
  }
  return r;
}

// Blames a row whose cases are each right: it may be wrong beside the module's other collectives,
// or for all losses but one.
void blame_whole_row(std::vector<CaseResult>& cases, std::size_t first, const Judgement& j) {
  const auto from = cases.begin() + static_cast<std::ptrdiff_t>(first);
  const auto is_off = [](const CaseResult& r) { return r.as_expected && !*r.as_expected; };
  if (!(j.wrong || j.needs_one_loss()) || std::any_of(from, cases.end(), is_off)) return;
  const auto judged = std::find_if(from, cases.end(),
                                   [](const CaseResult& r) { return r.as_expected.has_value(); });
  if (judged == cases.end()) return;
  const std::string why = j.wrong ? j.explanation : Judgement::kNeedsOneLoss;
  judged->as_expected = false;
  judged->why = why;
  judged->verdict = Verdict::kMismatch;
  judged->findings = {
      {.rule = "objective", .collective = std::string(traits(j.kind).name), .text = why}};
}

std::string right_for_text(const Judgement& j) {
  if (!j.offered) return "not offered";
  if (j.right_for.empty()) return j.wrong ? "none" : "?";
  return fmt::format("{}", fmt::join(j.right_for, ", "));
}

Picture::Square square_of(const Cell& cell, const AspectRow& aspect) {
  const std::string_view state = state_name(cell);
  Tone tone = Tone::kUnclear;
  if (state == "-")
    tone = Tone::kNone;
  else if (state == "ok" || state == "partly refused")
    tone = Tone::kRight;
  else if (state == "WRONG")
    tone = Tone::kWrong;
  const std::string word = tone == Tone::kNone ? "" : cell_text(cell);
  return {word, tone,
          fmt::format("{}: {} of {} cases right; {}", aspect.name, cell.right(), cell.tried(),
                      aspect.meaning)};
}

Picture picture_of(const std::vector<Judgement>& judgements) {
  Picture picture;
  picture.title = "Collectives by aspects";
  picture.legend =
      "Each square counts the cases of one aspect, judged by what the row is right for; 2/5: so "
      "many of so many are right. err: a case raises in forward; die: its ranks die or hang there; "
      "no: refused; ?: disputed.";
  std::vector<std::size_t> shown;  // those that were tried
  for (std::size_t a = 0; a < kAspectCount; ++a)
    if (std::any_of(judgements.begin(), judgements.end(),
                    [&](const Judgement& j) { return j.cells[a].tried() > 0; }))
      shown.push_back(a);
  picture.columns = {"function", "right for"};
  for (const std::size_t a : shown) picture.columns.emplace_back(aspects()[a].name);
  for (const Judgement& j : judgements) {
    Picture::Row row{j.name, {}};
    const Tone tone = !j.offered            ? Tone::kNone
                      : j.wrong             ? Tone::kWrong
                      : j.right_for.empty() ? Tone::kUnclear
                                            : Tone::kRight;
    row.squares.push_back({name_in(j.function), Tone::kNone, j.function});
    row.squares.push_back({right_for_text(j), tone, j.offered ? j.explanation : j.refusal});
    for (const std::size_t a : shown) row.squares.push_back(square_of(j.cells[a], aspects()[a]));
    picture.rows.push_back(std::move(row));
  }
  return picture;
}

}  // namespace

Report audit_report(const std::vector<Judgement>& judgements,
                    const std::vector<std::string>& unusable) {
  Report report;
  for (const Judgement& j : judgements) {
    const std::size_t first = report.cases.size();
    for (const TrialResult& t : *j.results)
      if (!j.offered || counts_for(t.trial, j.kind, j.convention))
        report.cases.push_back(judged_case(t, j));
    blame_whole_row(report.cases, first, j);
  }
  report.picture = picture_of(judgements);
  for (const std::string& why : unusable)
    report.picture->rows.push_back({"cannot be called", {{why, Tone::kUnclear, why}}});
  report.summary = summary_of(report.cases);
  return report;
}

}  // namespace distgrad
