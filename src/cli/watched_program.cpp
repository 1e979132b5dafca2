#include "cli/watched_program.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/adopted_children.h"
#include "base/child_process.h"
#include "base/error.h"
#include "base/interrupts.h"
#include "base/unique_fd.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;

constexpr int kLookMs = 100;  // a stopped program shows only when looked at

class Folder {
 public:
  Folder() {
    std::error_code error;
    std::string path = (fs::temp_directory_path(error) / "distgrad-XXXXXX").string();
    if (error || !mkdtemp(path.data()))
      throw UserError(fmt::format("cannot make a folder {}: {}; TMPDIR says where", path,
                                  error ? error.message() : std::strerror(errno)));
    path_ = path;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Returns its wait status, also if it was stopped. Passes signals on.
int wait_for(pid_t child) {
  const UniqueFd ended(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  bool is_told = false;
  for (;;) {
    int status = 0;
    const pid_t waited = waitpid(child, &status, WNOHANG | WUNTRACED);
    if (waited == child) return status;
    if (waited < 0 && errno != EINTR)
      throw SystemError("the program that was started is not there");
    if (interrupted_by() && !is_told) {
      is_told = true;
      kill(child, interrupted_by());
    }
    pollfd fds[] = {{is_told ? -1 : interrupts_fd(), POLLIN, 0}, {ended.get(), POLLIN, 0}};
    poll(fds, 2, kLookMs);
  }
}

ExitCode code_of(int status) {
  if (WIFEXITED(status)) return static_cast<ExitCode>(WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  if (signal == interrupted_by()) return static_cast<ExitCode>(128 + signal);
  throw SystemError("the process that starts the ranks was " + exit_description(status));
}

}  // namespace

ExitCode run_watched(const std::vector<std::string>& command) {
  const Interrupts interrupts;
  const Folder folder;
  const std::set<pid_t> before = current_children();
  adopt_orphans();
  ChildCommand child{command, {{"DISTGRAD_FOLDER", folder.path()}}};
  child.keeps_descriptors = true;
  const pid_t pid = start_child(child);
  const int status = wait_for(pid);
  const bool is_stopped = WIFSTOPPED(status);
  if (is_stopped) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  forget_child(pid);
  end_children_but(before);
  if (is_stopped)
    throw SystemError("the process that starts the ranks was stopped by " +
                      signal_description(WSTOPSIG(status)));
  return code_of(status);
}

}  // namespace distgrad
