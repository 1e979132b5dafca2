#include "base/sandbox.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/confinement.h"
#include "base/error.h"
#include "base/namespaces.h"
#include "base/unique_fd.h"

extern char** environ;

namespace distgrad {
namespace {

// None of these could be a secret.
constexpr std::array<std::string_view, 21> kKeptVariables = {"PATH",
                                                             "HOME",
                                                             "USER",
                                                             "LOGNAME",
                                                             "SHELL",
                                                             "LANG",
                                                             "TERM",
                                                             "COLUMNS",
                                                             "NO_COLOR",
                                                             "TMPDIR",
                                                             "TZ",
                                                             "PYTHONPATH",
                                                             "PYTHONHOME",
                                                             "VIRTUAL_ENV",
                                                             "CONDA_PREFIX",
                                                             "LD_LIBRARY_PATH",
                                                             "CUDA_HOME",
                                                             "CUDA_VISIBLE_DEVICES",
                                                             "CC",
                                                             "CXX",
                                                             "GITHUB_ACTIONS"};

[[noreturn]] void refuse(const std::string& what, int error) {
  throw UserError(
      "--sandbox: this system does not let distgrad " + what + ": " + std::strerror(error) +
      "; it takes unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
      "kernel.apparmor_restrict_unprivileged_userns=0), and in a container its own /proc");
}

// Mounts /proc of the new process namespace, as the old one would show the old processes.
void mount_proc() {
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    refuse("change mounts", errno);
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
    refuse("mount /proc", errno);
}

void clean_environment() {
  std::vector<std::string> removed;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view name =
        std::string_view(*entry).substr(0, std::string_view(*entry).find('='));
    const bool kept =
        std::find(kKeptVariables.begin(), kKeptVariables.end(), name) != kKeptVariables.end() ||
        name.starts_with("LC_") || (name.starts_with("DISTGRAD_") && name != "DISTGRAD_SECRET");
    if (!kept) removed.emplace_back(name);
  }
  for (const std::string& name : removed) unsetenv(name.c_str());
}

// Tries in a child whether what starts in the sandbox can be confined, as confinement is for good.
void try_to_confine(int report) {
  const pid_t child = fork();
  if (child < 0) refuse("start a process", errno);
  if (child == 0) {
    try {
      if (const char* what = confine()) refuse(what, errno);
      _exit(0);
    } catch (const UserError& e) {
      [[maybe_unused]] const ssize_t n = write(report, e.what(), std::strlen(e.what()));
      _exit(2);
    }
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) _exit(2);
}

bool entered = false;

// Sets up the namespace as its first process. Writes to `report` what it could not do, for the
// process that waits; nothing on success.
void enter_as_first(int report) {
  try {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    mount_proc();
    if (const char* what = raise_loopback()) refuse(what, errno);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) refuse("give up privileges", errno);
    clean_environment();
    try_to_confine(report);
  } catch (const UserError& e) {
    [[maybe_unused]] const ssize_t n = write(report, e.what(), std::strlen(e.what()));
    _exit(2);
  }
  syscall(SYS_close_range, 3U, ~0U, 0U);  // closes `report`, too
  entered = true;
}

pid_t inner = 0;

void hand_on(int signal) { kill(inner, signal); }

[[noreturn]] void wait_for_inner() {
  int status = 0;
  while (waitpid(inner, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
  }
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 3);
}

}  // namespace

bool in_sandbox() { return entered; }

void enter_sandbox() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC) != 0)
    refuse("make namespaces", errno);
  if (const char* what = map_user(user, group)) refuse(what, errno);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) refuse("make a pipe", errno);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  std::fflush(nullptr);
  inner = fork();
  if (inner < 0) refuse("start a process", errno);
  if (inner == 0) return enter_as_first(writing.release());
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, hand_on);
  writing.reset();
  std::string problem(4096, '\0');
  const ssize_t n = read(reading.get(), problem.data(), problem.size());
  if (n > 0) {
    waitpid(inner, nullptr, 0);
    throw UserError(problem.substr(0, static_cast<std::size_t>(n)));
  }
  wait_for_inner();
}

}  // namespace distgrad
