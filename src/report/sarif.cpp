#include "report/sarif.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/version.h"
#include "model/findings.h"
#include "report/case_words.h"
#include "report/json.h"
#include "report/source_place.h"
#include "report/valid_text.h"
#include "report/words.h"
#include "report/worst_first.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

// --- Rules ---

struct Rule {
  std::string_view id;
  std::string_view meaning;
  std::string_view help;
};

// Lists what makes a job red without a finding of a collective; the last two are for saved
// gradients.
constexpr Rule kOtherRules[] = {
    // id, meaning, help
    {"not-as-expected", "the case came out otherwise than its scenario file expects",
     "Where a known mistake was mended, take the expectation out of the scenario file. Else run "
     "the case alone with --verbose and compare it with what `subjects` says."},
    {"rank-error", "a rank crashed, hung, raised or fell out of step",
     "Run the case alone: the message names the rank, the step and the collective. Ranks that wait "
     "for each other for ever call the collectives in different orders."},
    {"invalid-scenario", "the scenario file cannot be read or means nothing",
     "Correct the file at the place shown; `distgrad schema scenario` prints what is allowed."},
};

std::vector<Rule> all_rules() {
  std::vector<Rule> rules;
  for (const FindingRow& row : kFindings) rules.push_back({row.name, row.meaning, row.help});
  rules.insert(rules.end(), std::begin(kOtherRules), std::end(kOtherRules));
  return rules;
}

Json rule_json(const Rule& rule) {
  std::string sentence(rule.meaning);
  sentence += '.';
  return {{"id", rule.id},
          {"shortDescription", {{"text", rule.meaning}}},
          {"fullDescription", {{"text", sentence}}},
          {"help",
           {{"text", rule.help}, {"markdown", fmt::format("**{}**\n\n{}", sentence, rule.help)}}},
          {"defaultConfiguration", {{"level", "error"}}},
          {"properties", {{"tags", {"gradient", "distributed"}}}}};
}

std::string rule_of(const CaseResult& r) {
  if (r.broken) return "rank-error";
  if (!r.findings.empty()) return r.findings.front().rule;
  return "not-as-expected";
}

// --- Results ---

// Encodes all that RFC 3986 does not allow in a path.
std::string uri_of(const std::string& path) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/";
  std::string out = path.starts_with('/') ? "file://" : "";
  for (const char c : path) {
    if (kPlain.find(c) != std::string_view::npos)
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

// Escapes braces, which mark placeholders in a message, and [text](target), which is a link (SARIF
// 2.1.0, 3.11). A space undoes the link; a backslash would, too, but readers show it.
std::string message_text(std::string_view text) {
  std::string out;
  for (const char c : valid_text(text)) {
    if (c == '{' || c == '}') out += c;
    if (c == '(' && out.ends_with(']')) out += ' ';
    out += c;
  }
  return out;
}

Json location(const std::string& path, int line) {
  Json artifact = {{"uri", uri_of(path)}};
  if (!path.starts_with('/')) artifact["uriBaseId"] = "%SRCROOT%";
  Json place = {{"artifactLocation", std::move(artifact)}};
  // There are no columns: SARIF counts characters, and scenario positions count bytes.
  if (line > 0) place["region"] = {{"startLine", line}};
  return {{"physicalLocation", std::move(place)}};
}

// Uses FNV-1a, which is always and everywhere the same, as std::hash is not.
std::string digest(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

// Excludes lines and figures, so that the same mistake stays the same alert when the file is edited
// above it. GitHub knows only the first name; without it, it would use the line's text, which all
// cases of a step share.
// all cases of a step share.
Json fingerprints(const std::string& identity) {
  const std::string value = digest(identity);
  return {{"primaryLocationLineHash", value + ":1"}, {"distgradCase/v1", value}};
}

// Puts the remedy first, then what was seen, since pages show only the first line.
std::string explanation(const CaseResult& r, const std::string& where) {
  const std::string seen = r.which.id + ": " + headline(r) + ".";
  if (r.findings.empty())
    return seen + (r.error && !r.error->message.empty() ? "\n" + r.error->message : "");
  const Finding& first = r.findings.front();
  std::string text = first.text + "\n" + seen;
  if (first.measured)
    text += "\nMeasured: " + short_formula(first.measured->formula) +
            "; right: " + short_formula(first.measured->right);
  for (std::size_t i = 1; i < r.findings.size(); ++i)
    text += fmt::format("\nOr: {}: {}", r.findings[i].rule.text(), r.findings[i].text);
  return where.empty() ? text : text + "\n" + where;
}

Json result_of(const CaseResult& r, const FormatContext& context, const std::string& where_it_is,
               const std::map<std::string, int, std::less<>>& rule_indices) {
  const std::string rule = rule_of(r);
  const std::string id = id_below(r, context.root);
  const SourcePlace place = place_of_case(r);
  Json where = location(path_below(place.file, context.root), place.line);
  where["logicalLocations"] = Json::array({{{"fullyQualifiedName", valid_text(id)}}});
  return {{"ruleId", rule},
          {"ruleIndex", rule_indices.at(rule)},
          {"level", "error"},
          {"message", {{"text", message_text(explanation(r, where_it_is))}}},
          {"locations", Json::array({std::move(where)})},
          {"partialFingerprints", fingerprints(id + "\n" + rule)},
          {"properties",
           {{"case", r.which.id},
            {"subject", r.which.subject},
            {"backend", r.which.backend},
            {"worldSize", r.which.world_size}}}};
}

Json result_of(const InvalidFile& f, const FormatContext& context,
               const std::map<std::string, int, std::less<>>& rule_indices) {
  const std::string path = path_below(f.file, context.root);
  return {{"ruleId", "invalid-scenario"},
          {"ruleIndex", rule_indices.at("invalid-scenario")},
          {"level", "error"},
          {"message", {{"text", message_text(problem_text(f))}}},
          {"locations", Json::array({location(path, f.position.line)})},
          {"partialFingerprints",
           fingerprints(path + "\ninvalid-scenario\n" + f.pointer + "\n" + f.message)}};
}

// --- The run ---

// Returns false for a problem without a place, such as that of a subject, which no alert can point
// at.
bool has_place(const InvalidFile& f) { return f.position.line > 0; }

Json notification(std::string_view level, const std::string& text) {
  return {{"level", level}, {"message", {{"text", message_text(text)}}}};
}

// Lists what was not judged, once for each reason.
Json notifications(const Report& report, const FormatContext& context) {
  std::map<std::string, int> reasons;
  for (const CaseResult& r : report.cases)
    if (!r.as_expected && !r.broken) ++reasons[headline(r)];
  Json all = Json::array();
  if (!context.ended_early.empty())
    all.push_back(notification(context.broken_off ? "error" : "note", context.ended_early + "."));
  for (const auto& [reason, count] : reasons)
    all.push_back(
        notification("note", fmt::format("not judged: {} ({} of the cases)", reason, count)));
  return all;
}

Json configuration_notifications(const Report& report) {
  Json all = Json::array();
  for (const InvalidFile& f : report.invalid)
    if (!has_place(f)) all.push_back(notification("error", problem_text(f)));
  return all;
}

}  // namespace

Json sarif_report(const Report& report, const FormatContext& context) {
  Json rules = Json::array();
  std::map<std::string, int, std::less<>> indices;
  for (const Rule& rule : all_rules()) {
    indices.emplace(rule.id, static_cast<int>(rules.size()));
    rules.push_back(rule_json(rule));
  }
  Json results = Json::array();
  const std::string where = where_text(report);
  for (const CaseResult* r : worst_first(report))
    results.push_back(result_of(*r, context, where, indices));
  for (const InvalidFile& f : report.invalid)
    if (has_place(f)) results.push_back(result_of(f, context, indices));

  Json driver = {{"name", "distgrad"},
                 {"version", kVersion},
                 {"semanticVersion", kVersion},
                 {"rules", std::move(rules)}};
  Json invocation = {{"executionSuccessful", !context.broken_off},
                     {"commandLine", report.command},
                     {"toolConfigurationNotifications", configuration_notifications(report)},
                     {"toolExecutionNotifications", notifications(report, context)}};
  Json run = {{"tool", {{"driver", std::move(driver)}}},
              {"invocations", Json::array({std::move(invocation)})},
              {"results", std::move(results)}};
  return {{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
          {"version", "2.1.0"},
          {"runs", Json::array({std::move(run)})}};
}

std::string sarif_text(const Report& report, const FormatContext& context) {
  return json_text(sarif_report(report, context));
}

}  // namespace distgrad
