#include "scenario/read_file.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/did_you_mean.h"
#include "base/regular_file.h"
#include "scenario/invalid_scenario.h"
#include "scenario/json_tree.h"
#include "scenario/printable.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, std::string message) {
  throw InvalidScenario({{path, {}, "", std::move(message), ""}});
}

// Returns `; did you mean "scenarios/debate.json"?` with the existing file or folder of the most
// similar name, or "".
std::string existing_path_hint(const std::string& path) {
  constexpr std::size_t kMostLookedAt = 10'000;
  std::error_code ignored;
  const fs::path wanted(path);
  const auto meant = [](const std::string& existing) {
    return "; did you mean " + in_quotes(existing, kLongestPath) + "?";
  };
  if (fs::is_regular_file(path + ".json", ignored)) return meant(path + ".json");
  const fs::path folder = wanted.has_parent_path() ? wanted.parent_path() : fs::path(".");
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder, ignored), end;
       !ignored && entry != end && names.size() < kMostLookedAt; entry.increment(ignored))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  const std::string nearest = nearest_name(wanted.filename().string(), names);
  if (nearest.empty()) return {};
  return meant((wanted.has_parent_path() ? folder / nearest : fs::path(nearest)).string());
}

}  // namespace

std::string read_scenario_file(const std::string& path) {
  if (fs::path(path).extension() == ".py")
    refuse(path, "is Python and no scenario; `distgrad audit python:" +
                     printable(path, kLongestPath) + "` tests the collectives in it");
  FileContent content = read_regular_file(path, kMaxFileBytes);
  if (content.problem.empty()) return std::move(content.text);
  if (content.error == ENOENT || content.error == ENOTDIR)
    refuse(path, "there is no such file or folder" + existing_path_hint(path));
  if (content.problem == "is a folder") refuse(path, "is a folder; name a scenario file in it");
  refuse(path, content.problem);
}

}  // namespace distgrad
