#include "audit/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "report/words.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

std::string_view state_name(CellState state) {
  switch (state) {
    case CellState::kNotTried: return "-";
    case CellState::kRight: return "ok";
    case CellState::kWrong: return "WRONG";
    case CellState::kRaised: return "raises";
    case CellState::kBroken: return "BROKEN";
    case CellState::kRefused: return "refused";
  }
  return "";
}

std::string cell_text(const Cell& cell) {
  if (cell.state == CellState::kWrong) return fmt::format("{}/{}", cell.right, cell.tried);
  return std::string(state_name(cell.state));
}

std::string verdict_text(const Judgement& j) {
  if (j.wrong) return "wrong";
  return fmt::format("right for {}", fmt::join(j.right_for, ", "));
}

std::size_t column_width(const AspectRow& aspect) { return std::max(aspect.name.size(), std::string_view("refused").size()); }

std::vector<Aspect> columns(const TableOptions& options) {
  std::vector<Aspect> shown;
  for (std::size_t a = 0; a < kAspectCount; ++a)
    if (!aspects()[a].on_request) shown.push_back(static_cast<Aspect>(a));
  shown.insert(shown.end(), options.requested.begin(), options.requested.end());
  return shown;
}

const AspectRow& row_of(Aspect aspect) { return aspects()[static_cast<std::size_t>(aspect)]; }

std::string rows(const std::vector<Judgement>& judgements, const std::vector<Aspect>& columns) {
  std::size_t name_width = 10;
  for (const Judgement& j : judgements)
    if (j.offered) name_width = std::max(name_width, j.name.size());
  std::string out = padded("", name_width);
  for (const Aspect aspect : columns) out += "  " + padded(row_of(aspect).name, column_width(row_of(aspect)));
  out += "\n";
  for (const Judgement& j : judgements) {
    if (!j.offered) continue;
    out += padded(j.name, name_width);
    for (const Aspect aspect : columns)
      out += "  " + padded(cell_text(j.cells[static_cast<std::size_t>(aspect)]), column_width(row_of(aspect)));
    out += fmt::format("  {}{}{}\n", verdict_text(j), j.rule.empty() ? "" : ": " + j.rule,
                       j.signature.empty() ? "" : ", " + j.signature);
  }
  return out;
}

// A wrong rule that shows in few cases is not the code's rule, but something that it does otherwise there; unless only few
// cases have the data that shows it.
std::string mostly_right_text(const Judgement& j) {
  constexpr std::string_view kShownByFewData[] = {"contiguity", "group-rank", "nondeterministic", "precision",
                                                  "stale-or-aliased", "tie", "wrong-group", "zero-input"};
  const int failing = j.judged - j.right;
  if (failing == 0 || 4 * failing > j.judged) return "";
  if (std::find(std::begin(kShownByFewData), std::end(kShownByFewData), j.rule) != std::end(kShownByFewData)) return "";
  return fmt::format(" In {} of {} cases the gradient is right: look at what the code does otherwise in {}.", j.right, j.judged,
                     failing == 1 ? "this one" : fmt::format("these {}", failing));
}

// Collectives that are wrong in the same way are told together, in the words of the first.
std::string failures(const std::vector<Judgement>& judgements, std::size_t width) {
  struct Told {
    const Judgement* first;
    std::vector<std::string> names;
  };
  std::vector<Told> told;
  for (const Judgement& j : judgements) {
    if (!j.wrong) continue;
    const auto same = std::find_if(told.begin(), told.end(), [&](const Told& t) {
      const bool alike = t.first->right_for.empty() == j.right_for.empty() && t.first->rule == j.rule && j.rule != "unexplained";
      return alike;
    });
    if (same != told.end()) same->names.push_back(j.name);
    else told.push_back({&j, {j.name}});
  }
  std::string out;
  for (const Told& t : told) {
    out += "\n" + wrapped(fmt::format("{}{}", fmt::join(t.names, ", "), ": wrong, " + t.first->rule), 0, width);
    if (!t.first->explanation.empty()) out += wrapped(t.first->explanation, 2, width);
    if (t.first->smallest_failure)
      out += wrapped(fmt::format("Smallest failing case: {}{}.{}", t.first->smallest_failure->trial.name,
                                 t.names.size() > 1 ? " of " + t.first->name : "", mostly_right_text(*t.first)), 2, width);
  }
  return out;
}

// Not failures, but worth knowing.
std::string errors(const std::vector<Judgement>& judgements, std::size_t width) {
  std::string out;
  for (const Judgement& j : judgements)
    for (const std::string& error : j.errors)
      if (j.offered) out += (out.empty() ? "\n" : "") + wrapped(j.name + ": " + for_terminal(error), 0, width);
  return out;
}

// Many ops are refused with the same words: those are told together.
std::string refusals(const std::vector<Judgement>& judgements, std::size_t width) {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;
  for (const Judgement& j : judgements) {
    if (j.offered) continue;
    const std::string reason = j.refusal.starts_with("raises") ? j.refusal : "not offered";
    const auto same = std::find_if(by_reason.begin(), by_reason.end(), [&](const auto& r) { return r.first == reason; });
    if (same == by_reason.end()) by_reason.push_back({reason, {j.name}});
    else same->second.push_back(j.name);
  }
  std::string out;
  for (const auto& [reason, names] : by_reason)
    out += (out.empty() ? "\n" : "") + wrapped(fmt::format("{}: {}", fmt::join(names, ", "), reason), 0, width);
  return out;
}

}  // namespace

std::string audit_text(const std::vector<Judgement>& judgements, const TableOptions& options) {
  const auto offered = std::count_if(judgements.begin(), judgements.end(), [](const Judgement& j) { return j.offered; });
  const auto wrong = std::count_if(judgements.begin(), judgements.end(), [](const Judgement& j) { return j.wrong; });
  std::string out = fmt::format("audit of {}\n\n", options.subject);
  if (offered > 0) out += rows(judgements, columns(options)) + failures(judgements, options.width) + errors(judgements, options.width);
  out += refusals(judgements, options.width);
  out += fmt::format("\n{} offered, {} wrong in {}.\n", count_text(offered, "collective"), wrong, seconds_text(options.elapsed_s));
  return out;
}

std::string audit_json(const std::vector<Judgement>& judgements, const TableOptions& options) {
  Json collectives = Json::array();
  for (const Judgement& j : judgements) {
    Json row = {{"collective", std::string(traits(j.kind).name)}};
    if (traits(j.kind).takes_op) row["op"] = std::string(name_of(j.op));
    row["offered"] = j.offered;
    if (j.offered) {
      row["wrong"] = j.wrong;
      row["right_for"] = j.right_for;
      row["rule"] = j.rule;
      row["signature"] = j.signature;
      for (std::size_t a = 0; a < j.cells.size(); ++a)
        if (j.cells[a].tried > 0)
          row["aspects"][std::string(aspects()[a].name)] = {
              {"state", std::string(state_name(j.cells[a].state))}, {"right", j.cells[a].right}, {"tried", j.cells[a].tried}};
      row["explanation"] = j.explanation;
      row["errors"] = j.errors;
    } else {
      row["refusal"] = j.refusal;
    }
    collectives.push_back(row);
  }
  return Json{{"format", 1}, {"subject", options.subject}, {"elapsed_s", options.elapsed_s}, {"collectives", collectives}}.dump(2) + "\n";
}

}  // namespace distgrad
