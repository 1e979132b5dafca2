#include "dumps/report_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/version.h"
#include "dumps/mapped_file.h"
#include "dumps/strict_json.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShown = 20;  // cases of a kind, without --full

bool has_report_keys(const Json& json) {
  return json.is_object() && json.contains("cases") && json["cases"].is_array() &&
         json.contains("summary") && json.contains("tool");
}

std::string text_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string finding_text(const Json& finding) {
  std::string text = text_in(finding, "rule");
  const std::string step = text_in(finding, "step"), collective = text_in(finding, "collective");
  if (!step.empty()) text += " in step " + step;
  if (!collective.empty()) text += fmt::format(" ({})", collective);
  return text;
}

std::string outcome_of(const Json& json) {
  std::string text = text_in(json, "verdict");
  if (json.contains("error") && json["error"].is_object())
    return text + ": " + text_in(json["error"], "kind");
  const auto findings = json.find("findings");
  if (findings != json.end() && findings->is_array() && !findings->empty() &&
      findings->front().is_object())
    text += ": " + finding_text(findings->front());
  return text;
}

std::optional<Finding> finding_of(const Json& json) {
  const auto findings = json.find("findings");
  if (findings == json.end() || !findings->is_array() || findings->empty() ||
      !findings->front().is_object())
    return std::nullopt;
  const Json& first = findings->front();
  const auto rule = FindingName::named(text_in(first, "rule"));
  if (!rule) return std::nullopt;  // of another version of distgrad
  return Finding{.rule = *rule,
                 .collective = text_in(first, "collective"),
                 .step = text_in(first, "step"),
                 .ranks = {},
                 .factor = {},
                 .text = text_in(first, "text")};
}

std::optional<RankError> error_of(const Json& json) {
  const auto error = json.find("error");
  if (error == json.end() || !error->is_object()) return std::nullopt;
  const auto kind = error_kind_named(text_in(*error, "kind"));
  if (!kind) return std::nullopt;
  const auto rank = error->find("rank");
  return RankError{
      .kind = *kind,
      .rank = rank != error->end() && rank->is_number_integer() ? rank->get<int>() : -1,
      .step = text_in(*error, "step"),
      .message = text_in(*error, "message")};
}

std::optional<int> world_size_in(const Json& json) {
  const auto found = json.find("world_size");
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  const auto size = found->get<std::int64_t>();
  return size > 0 && size <= 4096 ? std::optional(static_cast<int>(size)) : std::nullopt;
}

std::string but_for_subject(const Json& json) {
  std::string text;
  for (const char* key : {"file", "name", "backend", "world_size", "dtype", "objective", "device"})
    text += (json.contains(key) ? json[key].dump() : "") + "\n";
  return text;
}

ReportedCase case_of(const Json& json, const std::string& shown) {
  if (!json.is_object() || text_in(json, "id").empty() || text_in(json, "verdict").empty() ||
      !json.contains("as_expected"))
    throw UserError(shown +
                    ": a case without id, verdict or as_expected; is it a report of distgrad run?");
  ReportedCase c;
  c.id = text_in(json, "id");
  c.outcome = outcome_of(json);
  c.subject = text_in(json, "subject");
  c.file = text_in(json, "file");
  c.but_for_subject = but_for_subject(json);
  c.backend = text_in(json, "backend");
  c.dtype = dtype_named(text_in(json, "dtype")).value_or(c.dtype);
  c.world_size = world_size_in(json).value_or(c.world_size);
  c.verdict = verdict_named(text_in(json, "verdict")).value_or(Verdict::kMismatch);
  c.finding = finding_of(json);
  c.error = error_of(json);
  const Json& as_expected = json["as_expected"];
  c.status = !as_expected.is_boolean() ? ReportedCase::Status::kSkipped
             : as_expected.get<bool>() ? ReportedCase::Status::kGood
                                       : ReportedCase::Status::kBad;
  return c;
}

void compare_case(ReportChanges& changes, const ReportedCase& a, const ReportedCase& b) {
  using Status = ReportedCase::Status;
  CaseChange change{a.outcome, b.outcome, b};
  if (b.status == Status::kBad && a.status != Status::kBad)
    changes.newly_failing.push_back(std::move(change));
  else if (a.status == Status::kBad && b.status == Status::kGood)
    changes.fixed.push_back(std::move(change));
  else if (b.status == Status::kSkipped && a.status != Status::kSkipped)
    changes.no_longer_run.push_back(std::move(change));
  else if (a.outcome != b.outcome || a.status != b.status)
    changes.changed.push_back(std::move(change));
  else
    changes.unchanged.push_back(std::move(change));
  if (a.status == Status::kBad && b.status == Status::kBad) ++changes.still_failing;
}

struct Section {
  std::string_view status, key, words;
  const std::vector<CaseChange> ReportChanges::*cases;
};
// In the order in which they are reported.
constexpr Section kSections[] = {
    {"FAIL", "newly_failing", "newly failing", &ReportChanges::newly_failing},
    {"gone", "vanished", "vanished", &ReportChanges::vanished},
    {"skip", "no_longer_run", "no longer run", &ReportChanges::no_longer_run},
    {"diff", "changed", "changed", &ReportChanges::changed},
    {"ok", "fixed", "fixed", &ReportChanges::fixed},
    {"new", "added", "new", &ReportChanges::added},
};

// "newly failing: mismatch; was match", "vanished; was match", "new: match".
std::string change_text(std::string_view words, const CaseChange& c) {
  std::string text(words);
  if (!c.after.empty()) text += ": " + c.after;
  if (!c.before.empty() && c.before != c.after) text += "; was " + c.before;
  return text;
}

std::string case_line(const Section& section, const CaseChange& c, std::size_t width) {
  const std::string what = for_terminal(change_text(section.words, c));
  const std::string name =
      fmt::format("{}  {}", padded(section.status, 4), for_terminal(c.latest.id));
  const std::string line = fmt::format("{}   {}", name, what);
  return width_of(line) <= width ? line + "\n" : name + "\n" + wrapped(what, 6, width);
}

std::set<std::string> subjects_of(const ReportedRun& run) {
  std::set<std::string> subjects;
  for (const ReportedCase& c : run.cases) subjects.insert(c.subject);
  return subjects;
}

bool are_told_apart_without_subject(const ReportedRun& run) {
  std::set<std::string> seen;
  return std::all_of(run.cases.begin(), run.cases.end(),
                     [&](const ReportedCase& c) { return seen.insert(c.but_for_subject).second; });
}

// Whether the reports are of different subjects, and their cases can be compared all the same.
bool differ_in_subject(const ReportedRun& before, const ReportedRun& after) {
  const std::set<std::string> a = subjects_of(before), b = subjects_of(after);
  const bool any_in_both =
      std::any_of(a.begin(), a.end(), [&](const auto& s) { return b.contains(s); });
  return !any_in_both && are_told_apart_without_subject(before) &&
         are_told_apart_without_subject(after);
}

}  // namespace

bool is_report(const std::string& path) {
  if (!path.ends_with(".json")) return false;
  try {
    return has_report_keys(parse_strict_json(map_file(path).text(), path));
  } catch (const UserError&) {
    return false;  // whoever reads it as a dump tells why
  }
}

ReportedRun read_report(const std::string& path) {
  const std::string shown = for_terminal(path);
  const Json json = parse_strict_json(map_file(path).text(), shown);
  if (!has_report_keys(json)) throw UserError(shown + ": not a report of distgrad run --json");
  ReportedRun run;
  run.path = path;
  for (const Json& c : json["cases"]) run.cases.push_back(case_of(c, shown));
  return run;
}

ReportChanges changes_between(const ReportedRun& before, const ReportedRun& after) {
  ReportChanges changes;
  changes.before = before.path;
  changes.after = after.path;
  const bool other_subject = differ_in_subject(before, after);
  if (other_subject)
    changes.subjects = fmt::format("{} before, {} now", fmt::join(subjects_of(before), ", "),
                                   fmt::join(subjects_of(after), ", "));
  const auto key = other_subject ? &ReportedCase::but_for_subject : &ReportedCase::id;
  std::map<std::string, const ReportedCase*> later;
  for (const ReportedCase& c : after.cases) later[c.*key] = &c;
  for (const ReportedCase& c : before.cases) {
    const auto found = later.find(c.*key);
    if (found == later.end()) {
      changes.vanished.push_back({c.outcome, "", c});
      continue;
    }
    compare_case(changes, c, *found->second);
    later.erase(found);
  }
  for (const ReportedCase& c : after.cases) {
    if (later.count(c.*key) == 0) continue;
    auto& list = c.status == ReportedCase::Status::kBad ? changes.newly_failing : changes.added;
    list.push_back({"", c.outcome, c});
  }
  return changes;
}

std::string changes_text(const ReportChanges& changes, const ComparisonTextOptions& options) {
  std::string out;
  std::vector<std::string> counts;
  for (const Section& section : kSections) {
    const std::vector<CaseChange>& cases = changes.*section.cases;
    if (cases.empty()) continue;
    counts.push_back(fmt::format("{} {}", cases.size(), section.words));
    const std::size_t shown = options.full ? cases.size() : std::min(cases.size(), kShown);
    for (std::size_t i = 0; i < shown; ++i) out += case_line(section, cases[i], options.width);
    if (shown < cases.size())
      out += fmt::format("...   {} more {} (--full lists them)\n", cases.size() - shown,
                         section.words);
  }
  if (!out.empty()) out += "\n";
  if (!changes.subjects.empty())
    out += wrapped(for_terminal(fmt::format("Of different subjects: {}.", changes.subjects)), 0,
                   options.width);
  counts.push_back(fmt::format("{} unchanged", changes.unchanged.size()));
  if (changes.still_failing > 0)
    counts.push_back(fmt::format("{} still failing", changes.still_failing));
  return out + wrapped(fmt::format("{}.", fmt::join(counts, ", ")), 0, options.width);
}

Json changes_json(const ReportChanges& changes) {
  Json json = {{"format", 1},
               {"kind", "report-comparison"},
               {"tool", {{"name", "distgrad"}, {"version", kVersion}}},
               {"reference", changes.before},
               {"observed", changes.after}};
  for (const Section& section : kSections) {
    Json list = Json::array();
    for (const CaseChange& c : changes.*section.cases)
      list.push_back({{"id", c.latest.id},
                      {"before", c.before.empty() ? Json(nullptr) : Json(c.before)},
                      {"after", c.after.empty() ? Json(nullptr) : Json(c.after)}});
    json[std::string(section.key)] = std::move(list);
  }
  json["still_failing"] = changes.still_failing;
  json["unchanged"] = changes.unchanged.size();
  return json;
}

}  // namespace distgrad::dumps
