#include "scenario/read_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/did_you_mean.h"
#include "base/unique_fd.h"
#include "scenario/invalid_scenario.h"
#include "scenario/json_tree.h"
#include "scenario/printable.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, std::string message) {
  throw InvalidScenario({{path, {}, "", std::move(message), ""}});
}

std::string larger_than_allowed() {
  return fmt::format("the file is larger than {} MiB", kMaxFileBytes >> 20);
}

// `; did you mean "scenarios/debate.json"?`, or nothing: the existing file or folder whose name
// comes nearest.
std::string existing_path_hint(const std::string& path) {
  constexpr std::size_t kMostLookedAt = 10'000;
  std::error_code ignored;
  const fs::path wanted(path);
  const auto meant = [](const std::string& existing) {
    return "; did you mean \"" + printable(existing, kLongestPath) + "\"?";
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
    refuse(path, "is Python and no scenario; `distgrad audit python:" + printable(path, kLongestPath) + "` tests the collectives in it");
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!file) {
    if (errno == ENOENT || errno == ENOTDIR)
      refuse(path, "there is no such file or folder" + existing_path_hint(path));
    refuse(path, std::string("cannot be read: ") + std::strerror(errno));
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    refuse(path, std::string("cannot be read: ") + std::strerror(errno));
  if (S_ISDIR(status.st_mode)) refuse(path, "is a folder; name a scenario file in it");
  if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode))
    refuse(path, "is neither a file nor a pipe");
  if (S_ISREG(status.st_mode) && static_cast<std::size_t>(status.st_size) > kMaxFileBytes)
    refuse(path, larger_than_allowed());

  std::string text;
  std::vector<char> buffer(1 << 16);
  while (true) {
    const ssize_t n = ::read(file.get(), buffer.data(), buffer.size());
    if (n == 0) return text;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse(path, std::string("cannot be read: ") + std::strerror(errno));
    text.append(buffer.data(), static_cast<std::size_t>(n));
    if (text.size() > kMaxFileBytes) refuse(path, larger_than_allowed());
  }
}

}  // namespace distgrad
