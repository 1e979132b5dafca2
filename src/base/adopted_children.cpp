#include "base/adopted_children.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/file_beginning.h"

namespace distgrad {
namespace {

pid_t parent_of(const std::filesystem::path& process) {
  const std::string stat = beginning_of(process / "stat", 1024);
  const std::size_t end = stat.rfind(')');  // the process's name may hold anything
  return end == stat.npos || end + 4 >= stat.size() ? 0 : std::atoi(stat.c_str() + end + 4);
}

}  // namespace

std::set<pid_t> current_children() {
  std::set<pid_t> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const pid_t pid = std::atoi(entry->path().filename().c_str());
    if (pid > 0 && parent_of(entry->path()) == getpid()) found.insert(pid);
  }
  return found;
}

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

void end_children_but(const std::set<pid_t>& kept) {
  constexpr int kGenerations = 100;  // enough, unless something forks faster than it is killed
  for (int i = 0; i < kGenerations; ++i) {
    bool any = false;
    for (const pid_t pid : current_children()) {
      if (kept.contains(pid)) continue;
      any = true;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);  // its children become ours
    }
    if (!any) return;
  }
}

}  // namespace distgrad
