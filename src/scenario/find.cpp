#include "scenario/find.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "scenario/printable.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;

// Returns true for schemas, which `distgrad init` writes beside scenarios, where editors find them.
bool is_schema(const fs::path& file) { return file.stem().extension() == ".schema"; }

std::vector<fs::path> scenarios_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    const fs::path& file = entry->path();
    if (file.extension() == ".json" && !is_schema(file) && !entry->is_directory(ignored))
      files.push_back(file);
  }
  if (error)
    throw UserError(printable(folder.string(), kLongestPath) +
                    ": the folder cannot be read: " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<CaseSelection> find_scenarios(const std::vector<std::string>& paths) {
  std::vector<CaseSelection> found;
  std::set<std::string> whole_files;
  const auto add = [&](CaseSelection selection, bool whole) {
    if (!whole || whole_files.insert(selection.path).second) found.push_back(std::move(selection));
  };
  for (const std::string& path : paths) {
    const CaseSelection selection = parse_case_id(path);
    const bool whole = selection.path == path;
    std::error_code ignored;
    if (!fs::is_directory(selection.path, ignored)) {
      add(selection, whole);
    } else {
      for (const fs::path& file : scenarios_below(selection.path))
        add({file.string(), selection.fields}, whole);
    }
  }
  return found;
}

}  // namespace distgrad
