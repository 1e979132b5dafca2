#include "cli/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "base/version.h"
#include "cli/say.h"
#include "report/words.h"
#include "scenario/cases.h"
#include "scenario/find.h"
#include "scenario/invalid_scenario.h"
#include "scenario/parse.h"

namespace distgrad {

namespace {

void check_default_folder(const std::string& folder) {
  std::error_code ignored;
  if (std::filesystem::exists(folder, ignored)) return;
  throw UserError(fmt::format(
      "there is no folder \"{}\" here; `distgrad init` writes a first scenario into it", folder));
}

}  // namespace

Loaded load_cases(const std::vector<std::string>& paths, const Overrides& overrides) {
  Loaded loaded;
  std::map<std::string, const Scenario*> by_path;  // null: invalid, and reported
  std::set<std::string> ids;
  const std::vector<std::string> default_paths = {"scenarios"};
  if (paths.empty()) check_default_folder(default_paths.front());
  for (const CaseSelection& selection : find_scenarios(paths.empty() ? default_paths : paths)) {
    const auto [known, is_new] = by_path.emplace(selection.path, nullptr);
    if (is_new) {
      try {
        loaded.scenarios.push_back(std::make_unique<Scenario>(load_scenario(selection.path)));
        known->second = loaded.scenarios.back().get();
      } catch (const InvalidScenario& e) {
        loaded.invalid.insert(loaded.invalid.end(), e.problems().begin(), e.problems().end());
      }
    }
    if (known->second == nullptr) continue;
    for (Case& c : expand(*known->second, narrowed(overrides, selection.fields), kTorchVersion))
      if (ids.insert(c.id).second) loaded.cases.push_back(std::move(c));
  }
  return loaded;
}

void report_invalid(std::span<const InvalidFile> invalid) {
  for (const InvalidFile& file : invalid) complain("{}\n", line_of(file));
}

std::string choices_text(std::string_view command, std::span<const Case> cases) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (const Case& c : cases.first(std::min(cases.size(), kShown)))
    text += fmt::format("\n  distgrad {} {}", command, shell_quoted(c.id));
  return cases.size() <= kShown ? text : text + "\n  ... `distgrad list cases PATH` shows all";
}

}  // namespace distgrad
