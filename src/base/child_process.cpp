#include "base/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/confinement.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/namespaces.h"
#include "base/sandbox.h"

extern char** environ;

namespace distgrad {
namespace {

std::set<pid_t> started;  // by the one thread that starts any

std::vector<std::string> merged_environment(const ChildCommand& command) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    bool replaced = in_sandbox() && text.starts_with("TMPDIR=");
    for (const auto& [name, value] : command.environment)
      replaced = replaced || (text.starts_with(name) && text.substr(name.size()).starts_with('='));
    if (!replaced) result.emplace_back(text);
  }
  for (const auto& [name, value] : command.environment) result.push_back(name + "=" + value);
  if (in_sandbox()) result.push_back(std::string("TMPDIR=") + kPrivateFolder);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& s : strings) result.push_back(s.data());
  result.push_back(nullptr);
  return result;
}

// Makes the kernel kill this process first. It would rather kill what is large: the driver, which
// has mapped what all ranks sent, or the user's editor.
void be_killed_first() {
  const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t n = write(fd, "500", 3);
  close(fd);
}

// Runs between fork and exec, so nothing here may allocate.
[[noreturn]] void become(const ChildCommand& command, bool leaves_network, pid_t parent,
                         char** arguments, char** environment) {
  if (command.is_expendable) be_killed_first();
  if (leaves_network && !enter_own_network()) _exit(127);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  setsid();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD}) ::signal(signal, SIG_DFL);

  if (command.keeps_descriptors) {
    execve(arguments[0], arguments, environment);
    _exit(127);
  }

  // The descriptors to pass on may be numbered 0 to 3 themselves, so we move them away first.
  const int inherited =
      command.inherited_fd < 0 ? -1 : fcntl(command.inherited_fd, F_DUPFD_CLOEXEC, 10);
  const int output = command.output_fd < 0 ? -1 : fcntl(command.output_fd, F_DUPFD_CLOEXEC, 10);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  if (output >= 0) {
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
  }
  if (inherited >= 0) dup2(inherited, kInheritedFd);

  // The child must not get the descriptors that this process was given by its caller.
  syscall(SYS_close_range, static_cast<unsigned>(inherited >= 0 ? kInheritedFd + 1 : kInheritedFd),
          ~0U, 0U);

  if (!in_sandbox() || !confine()) execve(arguments[0], arguments, environment);
  const char* reason = strerror(errno);
  [[maybe_unused]] ssize_t n = write(STDERR_FILENO, reason, strlen(reason));
  _exit(127);
}

}  // namespace

pid_t start_child(const ChildCommand& command) {
  std::vector<std::string> arguments = command.arguments;
  std::vector<std::string> environment = merged_environment(command);
  const std::vector<char*> argument_pointers = pointers(arguments);
  const std::vector<char*> environment_pointers = pointers(environment);
  const bool leaves_network =
      command.is_expendable && !limits().host_network && can_have_own_network();
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0)
    throw SystemError("cannot start " + command.arguments[0] + ": fork: " + std::strerror(errno));
  if (child == 0)
    become(command, leaves_network, parent, const_cast<char**>(argument_pointers.data()),
           const_cast<char**>(environment_pointers.data()));
  started.insert(child);
  return child;
}

std::set<pid_t> started_children() { return started; }
void forget_child(pid_t child) { started.erase(child); }

std::string signal_description(int signal) {
  const char* name = sigabbrev_np(signal);
  if (!name) return "signal " + std::to_string(signal);
  std::string what = sigdescr_np(signal);
  what[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(what[0])));
  return std::string("SIG") + name + " (" + what + ")";
}

std::string exit_description(int wait_status) {
  if (WIFSIGNALED(wait_status)) return "killed by " + signal_description(WTERMSIG(wait_status));
  return "exited with status " + std::to_string(WEXITSTATUS(wait_status));
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  constexpr rlim_t kEnough = 1 << 16;  // no more, as some programs visit every possible descriptor
  if (limit.rlim_cur >= kEnough) return;
  limit.rlim_cur = limit.rlim_max < kEnough ? limit.rlim_max : kEnough;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace distgrad
