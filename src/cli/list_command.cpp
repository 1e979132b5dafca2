// distgrad list scenarios|cases|collectives|subjects|backends|rules|findings
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/did_you_mean.h"
#include "base/error.h"
#include "base/output.h"
#include "cli/command.h"
#include "cli/host.h"
#include "cli/load.h"
#include "cli/parse_arguments.h"
#include "model/backends.h"
#include "model/collective_kind.h"
#include "model/findings.h"
#include "model/libraries.h"
#include "pool/worker_pool.h"
#include "report/json.h"
#include "report/words.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

// Has a JSON object for each thing listed, with its keys in the order of printing; the first is the
// name.
struct Listing {
  Json rows = Json::array();
  std::vector<InvalidFile> invalid;
};

Json text_or_null(std::string_view text) { return text.empty() ? Json(nullptr) : Json(text); }

Listing list_scenarios(const std::vector<std::string>& paths) {
  Listing listing;
  Loaded loaded = load_cases(paths, {});
  for (const auto& scenario : loaded.scenarios)
    listing.rows.push_back(
        {{"file", scenario->file}, {"name", scenario->name}, {"note", scenario->note}});
  listing.invalid = std::move(loaded.invalid);
  return listing;
}

Listing list_cases(const std::vector<std::string>& paths) {
  Listing listing;
  Host host;
  Overrides overrides;
  host.answer_for_accelerators(overrides);
  Loaded loaded = load_cases(paths, overrides);
  for (const Case& c : loaded.cases)
    listing.rows.push_back({{"id", c.id},
                            {"file", c.scenario->file},
                            {"name", c.scenario->name},
                            {"subject", c.subject},
                            {"world_size", c.world_size},
                            {"dtype", traits(c.dtype).name},
                            {"backend", c.backend},
                            {"objective", spelled(c.objective)},
                            {"expected", expectation_json(c.expected)},
                            {"skipped", text_or_null(c.skip_reason)}});
  listing.invalid = std::move(loaded.invalid);
  return listing;
}

Json options_of(const CollectiveTraits& t) {
  Json options = Json::array();
  if (t.takes_op) options.insert(options.end(), {"op", "factor"});
  if (t.takes_root) options.push_back("root");
  if (t.takes_dim) options.push_back("dim");
  if (t.takes_splits) options.push_back("splits");
  if (t.takes_pairs) options.push_back("pairs");
  options.push_back("group");
  return options;
}

Listing list_collectives(const std::vector<std::string>&) {
  Listing listing;
  for (const CollectiveTraits& t : kCollectives)
    listing.rows.push_back({{"kind", t.name}, {"options", options_of(t)}, {"result", t.result}});
  return listing;
}

Json rules_of(const SubjectRow& subject) {
  Json rules = Json::array();
  for (const LibraryRow& row : library_rows()) {
    if (row.subject != subject.name) continue;
    rules.push_back({{"collective", traits(row.kind).name}, {"ops", row.ops}, {"rule", row.rule}});
  }
  return rules;
}

Listing list_subjects(const std::vector<std::string>&) {
  Listing listing;
  for (const SubjectRow& row : subjects())
    listing.rows.push_back(
        {{"subject", row.name}, {"source", row.source}, {"rules", rules_of(row)}});
  return listing;
}

Listing list_backends(const std::vector<std::string>&) {
  Listing listing;
  const Probe probe = probe_accelerators(rank_executable(), false);
  for (const BackendRow& row : kBackends) {
    const std::string why = row.name == "nccl" ? probe.nccl_unavailable : "";
    listing.rows.push_back(
        {{"backend", row.name}, {"what", row.what}, {"unavailable", text_or_null(why)}});
  }
  return listing;
}

Listing list_rules(const std::vector<std::string>&) {
  Listing listing;
  for (const BackwardRuleRow& row : backward_rules())
    listing.rows.push_back(
        {{"rule", row.name}, {"finding", text_or_null(row.finding)}, {"summary", row.summary}});
  return listing;
}

Listing list_findings(const std::vector<std::string>&) {
  Listing listing;
  for (const FindingRow& row : kFindings)
    listing.rows.push_back({{"finding", row.name}, {"meaning", row.meaning}});
  return listing;
}

struct Subject {
  std::string_view name;
  bool takes_paths;
  Listing (*function)(const std::vector<std::string>& paths);
  // The text shows these keys beside the name; the JSON has all.
  std::vector<std::string> shown;
};

const std::vector<Subject>& subjects_of_list() {
  static const std::vector<Subject> all = {
      {"scenarios", true, list_scenarios, {"note"}},
      {"cases", true, list_cases, {}},
      {"collectives", false, list_collectives, {"options", "result"}},
      {"subjects", false, list_subjects, {"source"}},
      {"backends", false, list_backends, {"what", "unavailable"}},
      {"rules", false, list_rules, {"finding", "summary"}},
      {"findings", false, list_findings, {"meaning"}},
  };
  return all;
}

std::string shown_text(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return on_one_line(value.get<std::string>());
  std::string text;
  for (const Json& item : value) text += (text.empty() ? "" : ", ") + item.get<std::string>();
  return text;
}

// Makes columns as wide as their widest entry; the last is not padded.
std::string table(const Json& rows, const std::vector<std::string>& shown) {
  std::vector<std::vector<std::string>> lines;
  std::vector<std::size_t> widths(shown.size() + 1);
  for (const Json& row : rows) {
    std::vector<std::string>& line = lines.emplace_back();
    line.push_back(shown_text(row.begin().value()));
    for (const std::string& key : shown) line.push_back(shown_text(row[key]));
    for (std::size_t i = 0; i < line.size(); ++i)
      widths[i] = std::max(widths[i], width_of(line[i]));
  }
  std::string out;
  for (const auto& line : lines) {
    std::string text;
    for (std::size_t i = 0; i < line.size(); ++i)
      text += i + 1 < line.size() ? padded(line[i], widths[i] + 2) : line[i];
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::vector<std::string> names_of_topics() {
  std::vector<std::string> names;
  for (const Subject& s : subjects_of_list()) names.emplace_back(s.name);
  return names;
}

const Subject& subject_named(const std::string& name) {
  for (const Subject& s : subjects_of_list())
    if (s.name == name) return s;
  const std::vector<std::string> names = names_of_topics();
  std::string hint = did_you_mean(name, names);
  if (hint.empty()) hint = fmt::format("; there are {}", fmt::join(names, ", "));
  throw UserError(fmt::format("list: nothing is called \"{}\"{}", name, hint));
}

}  // namespace

ExitCode list_command(const Arguments& arguments) {
  CLI::App app("List what there is, a line each.", "distgrad list");
  std::string what;
  std::vector<std::string> paths;
  bool as_json = false;
  app.add_option("WHAT", what,
                 "scenarios, cases, collectives, subjects, backends, rules or findings")
      ->required()
      ->type_name(choices_text(names_of_topics()));
  app.add_option("PATH", paths,
                 "for scenarios and cases: files, folders, cases (default scenarios)");
  app.add_flag("--json", as_json, "as JSON, with everything known");
  describe(app,
           "Examples:\n"
           "  distgrad list subjects\n"
           "  distgrad list cases --json scenarios/debate\n");
  if (const auto done = parse_arguments(app, arguments)) return *done;
  const Subject& subject = subject_named(what);
  if (!paths.empty() && !subject.takes_paths)
    throw UserError(fmt::format("list: {} takes no path", what));
  const Listing listing = subject.function(paths);
  if (as_json)
    put(json_text(listing.rows));
  else
    put(table(listing.rows, subject.shown));
  report_invalid(listing.invalid);
  return listing.invalid.empty() ? ExitCode::kAsExpected : ExitCode::kUserError;
}

}  // namespace distgrad
