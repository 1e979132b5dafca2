#include "pool/process_scan.h"

#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "base/file_beginning.h"

namespace distgrad {
namespace {

std::string content(const std::filesystem::path& file) {
  constexpr std::size_t kLongestEnvironment = 1 << 20;
  return beginning_of(file, kLongestEnvironment);
}

bool is_zombie(const std::filesystem::path& process) {
  const std::string stat = content(process / "stat");
  const std::size_t end = stat.rfind(')');
  return end == stat.npos || end + 2 >= stat.size() || stat[end + 2] == 'Z' || stat[end + 2] == 'X';
}

}  // namespace

std::string mark_environment() {
  const std::string mark = "distgrad-test-" + std::to_string(getpid());
  setenv("DISTGRAD_TEST_MARK", mark.c_str(), 1);
  return mark;
}

std::vector<pid_t> marked_processes(const std::string& mark, const std::string& name) {
  const std::string entry = "DISTGRAD_TEST_MARK=" + mark + '\0';
  std::vector<pid_t> pids;
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    const std::string number = process.path().filename();
    if (!std::isdigit(static_cast<unsigned char>(number[0])) || std::stoi(number) == getpid())
      continue;
    if (content(process.path() / "environ").find(entry) == std::string::npos ||
        is_zombie(process.path()))
      continue;
    if (content(process.path() / "comm").starts_with(name)) pids.push_back(std::stoi(number));
  }
  return pids;
}

std::vector<pid_t> marked_processes(const std::string& mark) { return marked_processes(mark, ""); }

bool all_gone(const std::string& mark) {
  for (int i = 0; i < 500; ++i) {
    if (marked_processes(mark).empty()) return true;
    usleep(10'000);
  }
  return false;
}

}  // namespace distgrad
