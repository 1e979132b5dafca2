#include "audit/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "audit/cell_text.h"
#include "audit/tally.h"
#include "model/subject_text.h"
#include "report/case_text.h"
#include "report/json.h"
#include "report/words.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kNameWidth = 14;

const Cell& cell_of(const Judgement& j, Aspect aspect) {
  return j.cells[static_cast<std::size_t>(aspect)];
}

std::vector<Aspect> always_tried() {
  std::vector<Aspect> shown;
  for (std::size_t a = 0; a < kAspectCount; ++a)
    if (!aspects()[a].on_request) shown.push_back(static_cast<Aspect>(a));
  return shown;
}

// ---- the table

std::string objectives_text(const std::vector<std::string>& objectives) {
  std::vector<std::string> names;
  for (const std::string& name : objectives)
    names.push_back("for " + (name == "mean" && objectives.size() < 3
                                  ? name + " (DistributedDataParallel)"
                                  : name));
  return fmt::format("{}", fmt::join(names, " and "));
}

std::string verdict_text(const Judgement& j) {
  const std::string rule = j.rule.empty() ? "" : ": " + j.rule;
  const std::string signature = j.signature.empty() ? "" : ", " + j.signature;
  if (j.wrong) return "WRONG" + rule + signature;
  if (j.right_for.empty()) return "disputed";
  if (j.right_for.size() == std::size(kAuditObjectives))
    return "right for every objective" + rule + signature;
  const std::string wrong = j.wrong_for.empty() ? "" : "; wrong " + objectives_text(j.wrong_for);
  return fmt::format("right for {}{}{}{}", fmt::join(j.right_for, " and "), wrong, rule, signature);
}

std::string heading(const Judgement& j) {
  const std::string_view kind = traits(j.kind).name;
  return j.function.empty() ? std::string(kind)
                            : fmt::format("{} of {}", kind, for_terminal(j.function));
}

// Returns the name's column and the cells', without trailing spaces.
std::string line_of(const std::string& name, const std::vector<std::string>& cells) {
  std::string line = padded(name, kNameWidth) + fmt::format("{}", fmt::join(cells, " "));
  line.resize(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::size_t width_of_line(const std::vector<Aspect>& columns) {
  std::size_t width = kNameWidth - 1;
  for (const Aspect aspect : columns) width += 1 + row_of(aspect).name.size();
  return width;
}

std::string cells_line(const Judgement& j, const std::string& name,
                       const std::vector<Aspect>& columns) {
  std::vector<std::string> cells;
  for (const Aspect aspect : columns)
    cells.push_back(padded(cell_text(cell_of(j, aspect)), row_of(aspect).name.size()));
  return line_of(name, cells);
}

// Names each cell by its column, for a terminal too narrow for the columns.
std::string named_cells(const Judgement& j, const std::string& name,
                        const std::vector<Aspect>& columns, std::size_t width) {
  std::vector<std::string> cells;
  for (const Aspect aspect : columns)
    if (cell_of(j, aspect).tried() > 0)
      cells.push_back(fmt::format("{} {}", row_of(aspect).name, cell_text(cell_of(j, aspect))));
  const std::string list = cells.empty() ? "-" : fmt::format("{}", fmt::join(cells, ", "));
  return wrapped(name.empty() ? list : fmt::format("{}: {}", name.substr(2), list), 2, width);
}

std::string verdict_lines(const Judgement& j, std::size_t indent, std::size_t width) {
  std::string out = wrapped(verdict_text(j), indent, width);
  if (j.measured)
    out += wrapped(
        short_formula(j.measured->formula) + (j.is_measured_elsewhere ? ", where it is right" : ""),
        indent, width);
  return out;
}

// Puts beside the line what would come below it, indented.
std::string joined(std::string line, const std::string& below, std::size_t indent) {
  line.pop_back();  // its end
  return padded(line, indent) + below.substr(indent);
}

// Puts a row's verdict below its cells, or right of them if there is room.
std::string table(const std::vector<Judgement>& judgements, const std::vector<Aspect>& columns,
                  std::size_t width, bool has_verdicts) {
  constexpr std::size_t kLeastVerdict = 48, kGap = 2;
  const std::size_t line_width = width_of_line(columns), right_of_it = line_width + kGap;
  const bool is_narrow = line_width > width, is_wide = right_of_it + kLeastVerdict <= width;
  std::vector<std::string> names;
  for (const Aspect aspect : columns) names.emplace_back(row_of(aspect).name);
  std::string out = is_narrow ? "" : line_of("", names), last_heading;
  for (const Judgement& j : judgements) {
    if (!j.offered) continue;
    if (heading(j) != last_heading) out += wrapped(last_heading = heading(j), 0, width);
    const std::string name = traits(j.kind).takes_op ? "  " + std::string(name_of(j.op)) : "";
    const std::string line =
        is_narrow ? named_cells(j, name, columns, width) : cells_line(j, name, columns);
    if (!has_verdicts)
      out += line;
    else if (is_wide)
      out += joined(line, verdict_lines(j, right_of_it, width), right_of_it);
    else
      out += line + verdict_lines(j, is_narrow ? 4 : kNameWidth, width);
  }
  return out;
}

std::string legend_text(const std::vector<Judgement>& judgements, std::size_t width) {
  std::vector<const Cell*> cells;
  for (const Judgement& j : judgements)
    for (const Cell& cell : j.cells)
      if (j.offered) cells.push_back(&cell);
  const std::string text = legend(cells);
  return text.empty() ? "" : wrapped(text, 0, width);
}

// Explains the formulas, and what they rest on.
std::string formulas_text(const std::vector<Judgement>& judgements, std::size_t width) {
  std::vector<std::string> rests;  // what each line's formula rests on
  for (const Judgement& j : judgements)
    if (j.offered && j.measured)
      rests.push_back(
          fmt::format("on {} ranks with {}", j.measured->ranks.size(), j.measured->shown_by));
  if (rests.empty()) return "";
  const bool are_alike = std::ranges::count(rests, rests[0]) == std::ssize(rests);
  return "\n" + wrapped(fmt::format("x̄_r is the gradient that the backward gives rank r's operand, "
                                    "ȳ_k the cotangent of rank k's output. {}easured {}{}. Where "
                                    "the backward is linear, this settles it for every contiguous "
                                    "cotangent of these shapes.",
                                    are_alike ? "M" : "The first line was m", rests[0],
                                    are_alike ? "" : "; --json has the numbers of the others"),
                        0, width);
}

// ---- below it

// Returns "all_gather", or "all_gather (GatherLayer.apply)" if there are several functions for it.
class Names {
 public:
  explicit Names(const std::vector<Judgement>& judgements) {
    std::set<std::pair<std::string, std::string>> seen;
    for (const Judgement& j : judgements)
      if (seen.emplace(j.name, j.function).second) ++functions_[j.name];
  }
  std::string of(const Judgement& j) const {
    const auto found = functions_.find(j.name);
    if (found == functions_.end() || found->second < 2) return j.name;
    return fmt::format("{} ({})", j.name, name_in(j.function));
  }

 private:
  std::map<std::string, int> functions_;
};

// Keeps texts in the order of their arrival, each with the names to which it applies.
class TextsByName {
 public:
  void add(const std::string& text, const std::string& name) {
    const auto same =
        std::find_if(all_.begin(), all_.end(), [&](const auto& s) { return s.first == text; });
    if (same == all_.end())
      all_.push_back({text, {name}});
    else
      same->second.push_back(name);
  }
  std::string text(std::size_t width) const {
    std::string out;
    for (const auto& [text, names] : all_)
      out += (out.empty() ? "\n" : "") +
             wrapped(fmt::format("{}: {}", fmt::join(names, ", "), for_terminal(text)), 0, width);
    return out;
  }

 private:
  std::vector<std::pair<std::string, std::vector<std::string>>> all_;
};

// Says that a wrong rule that shows in few cases is something that the code does otherwise there,
// not its rule. It does not if only few cases have the data that shows the rule, or if the rule is
// right and the text mentions the cases.
std::string mostly_right_text(const Judgement& j) {
  const int failing = j.judged - j.right;
  if (failing == 0 || 4 * failing > j.judged || j.only_fails) return "";
  const auto rule = FindingName::named(j.rule);
  if (rule && rule->row().is_shown_by_few_data) return "";
  return fmt::format(
      " In {} of {} cases the gradient is right: look at what the code does otherwise in {}.",
      j.right, j.judged, failing == 1 ? "this one" : fmt::format("these {}", failing));
}

// Groups collectives that are wrong in the same way, with the text of the first.
std::string failures(const std::vector<Judgement>& judgements, const Names& names_of,
                     std::size_t width) {
  struct Group {
    const Judgement* first;
    std::vector<std::string> names;
  };
  std::vector<Group> groups;
  for (const Judgement& j : judgements) {
    if (!j.wrong) continue;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
      return g.first->right_for.empty() == j.right_for.empty() && g.first->rule == j.rule &&
             j.rule != "unexplained";
    });
    if (same != groups.end())
      same->names.push_back(names_of.of(j));
    else
      groups.push_back({&j, {names_of.of(j)}});
  }
  std::string out;
  for (const Group& g : groups) {
    out += "\n" +
           wrapped(fmt::format("{}: wrong, {}", fmt::join(g.names, ", "), g.first->rule), 0, width);
    if (!g.first->explanation.empty()) out += wrapped(for_terminal(g.first->explanation), 2, width);
    if (const TrialResult* smallest = g.first->smallest_failure) {
      out += wrapped(fmt::format("Smallest failing case: {}{}.{}", smallest->trial.name,
                                 g.names.size() > 1 ? " of " + names_of.of(*g.first) : "",
                                 mostly_right_text(*g.first)),
                     2, width);
      // The warnings mention a function that returns None, for instance.
      if (g.first->rule == "forward") out += warnings_text(smallest->result, {.width = width});
    }
  }
  return out;
}

// Lists what is no failure, but worth knowing.
std::string notes(const std::vector<Judgement>& judgements, const Names& names, std::size_t width) {
  TextsByName texts;
  for (const Judgement& j : judgements) {
    if (!j.beside_others.empty()) texts.add(j.beside_others, names.of(j));
    for (const Note& note : j.notes)
      if (j.offered) texts.add(note.text, names.of(j));
  }
  return texts.text(width);
}

std::string aspects_text(const std::vector<Aspect>& aspects) {
  std::vector<std::string_view> names;
  for (const Aspect aspect : aspects) names.push_back(row_of(aspect).name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<Aspect> not_requested(const TableOptions& options) {
  std::vector<Aspect> left;
  for (std::size_t a = 0; a < kAspectCount; ++a)
    if (aspects()[a].on_request && std::find(options.requested.begin(), options.requested.end(),
                                             static_cast<Aspect>(a)) == options.requested.end())
      left.push_back(static_cast<Aspect>(a));
  return left;
}

// Adds "not tried: groups" for each collective with cases for an aspect, none of which could be
// judged.
void add_untried(const Judgement& j, const std::string& name, TextsByName& texts) {
  std::vector<Aspect> untried;
  for (std::size_t a = 0; a < kAspectCount; ++a)
    if (j.cells[a].tried() > 0 && j.cells[a].judged() == 0)
      untried.push_back(static_cast<Aspect>(a));
  if (!untried.empty()) texts.add("not tried: " + aspects_text(untried), name);
}

// Lists what an audit says nothing about.
std::string untried(const std::vector<Judgement>& judgements, const Names& names,
                    const TableOptions& options) {
  TextsByName texts;
  for (const Judgement& j : judgements) {
    if (j.offered)
      add_untried(j, names.of(j), texts);
    else
      texts.add(j.refusal.starts_with("raises") || j.refusal.starts_with("refused") ? j.refusal
                                                                                    : "not offered",
                names.of(j));
  }
  for (const std::string& kind : options.lacking) texts.add("not offered", kind);
  std::string out = texts.text(options.width);
  const auto add = [&](const std::string& text) {
    out += (out.empty() ? "\n" : "") + wrapped(text, 0, options.width);
  };
  for (const std::string& why : options.unusable) add("not tried: " + for_terminal(why));
  if (!options.left_out.empty())
    add(fmt::format("left out: {}", fmt::join(options.left_out, ", ")));
  std::vector<std::string> on_request;
  if (const auto left = not_requested(options); !left.empty())
    on_request.push_back(aspects_text(left) + " (--aspects)");
  if (!options.not_asked.empty())
    on_request.push_back(fmt::format("{} (--collective)", fmt::join(options.not_asked, ", ")));
  if (!on_request.empty()) add(fmt::format("not asked for: {}", fmt::join(on_request, "; ")));
  return out;
}

// ---- JSON

Json cells_json(const Judgement& j) {
  Json cells = Json::object();
  for (std::size_t a = 0; a < j.cells.size(); ++a) {
    const Cell& cell = j.cells[a];
    if (cell.tried() == 0) continue;
    cells[std::string(aspects()[a].name)] = {{"state", std::string(state_name(cell))},
                                             {"right", cell.right()},
                                             {"tried", cell.tried()},
                                             {"judged", cell.judged()}};
  }
  return cells;
}

Json row_json(const Judgement& j) {
  Json row = {{"collective", std::string(traits(j.kind).name)}};
  if (traits(j.kind).takes_op) row["op"] = std::string(name_of(j.op));
  row["function"] = j.function;
  row["offered"] = j.offered;
  if (!j.offered) {
    row["refusal"] = j.refusal;
    return row;
  }
  row["wrong"] = j.wrong;
  row["right_for"] = j.right_for;
  row["wrong_for"] = j.wrong_for;
  row["rule"] = j.rule;
  row["signature"] = j.signature;
  row["aspects"] = cells_json(j);
  row["explanation"] = j.explanation;
  row["measured"] = j.measured ? measured_json(*j.measured) : Json(nullptr);
  row["errors"] = Json::array();
  row["refused"] = Json::array();
  for (const Note& note : j.notes) {
    const bool raised = note.outcome == Outcome::kRaises || note.outcome == Outcome::kBreaks ||
                        note.outcome == Outcome::kFailsInBackward;
    row[raised ? "errors" : "refused"].push_back(note.text);
  }
  return row;
}

Json summary_json(const AuditTally& t) {
  return {{"offered", t.offered},
          {"wrong", t.wrong},
          {"wrong_for_mean", t.wrong_for_mean},
          {"refused_in_backward", t.refused_in_backward},
          {"disputed", t.disputed},
          {"tried_in_part", t.tried_in_part},
          {"not_tried", t.not_tried},
          {"not_offered", t.not_offered}};
}

AuditTally tally_with(const std::vector<Judgement>& judgements, const TableOptions& options) {
  return tally_of(judgements, options.unusable.size(), options.lacking.size());
}

}  // namespace

std::string audit_text(const std::vector<Judgement>& judgements, const TableOptions& options) {
  const AuditTally tally = tally_with(judgements, options);
  const Names names(judgements);
  std::string out = fmt::format("audit of {}\n", for_terminal(options.subject));
  if (tally.offered > 0) {
    out += "\n" + table(judgements, always_tried(), options.width, true);
    if (!options.requested.empty())
      out += "\n" + table(judgements, options.requested, options.width, false);
    out += legend_text(judgements, options.width) + formulas_text(judgements, options.width) +
           failures(judgements, names, options.width) + notes(judgements, names, options.width);
  }
  out += untried(judgements, names, options);
  out +=
      "\n" + wrapped(fmt::format("{} in {}.", tally_text(tally), seconds_text(options.elapsed_s)),
                     0, options.width);
  TextsByName answers;
  for (const Judgement& j : judgements)
    if (j.needs_one_loss()) answers.add(std::string(Judgement::kNeedsOneLoss) + ".", names.of(j));
  return out + answers.text(options.width);
}

std::string audit_json(const std::vector<Judgement>& judgements, const TableOptions& options) {
  Json collectives = Json::array();
  for (const Judgement& j : judgements) collectives.push_back(row_json(j));
  Json audit{{"format", 1},
             {"subject", options.subject},
             {"elapsed_s", options.elapsed_s},
             {"summary", summary_json(tally_with(judgements, options))},
             {"unusable", options.unusable},
             {"lacking", options.lacking},
             {"collectives", collectives}};
  if (!options.ended_early.empty()) audit["ended_early"] = options.ended_early;
  return audit.dump(2) + "\n";
}

}  // namespace distgrad
