#include "rank/zygote.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/adopted_children.h"
#include "base/failed_call.h"
#include "protocol/channel.h"

namespace distgrad {
namespace {

sigset_t zygote_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGTERM);  // the kernel sends it, too, when the driver dies
  return set;
}

class Zygote {
 public:
  explicit Zygote(UniqueFd control) : zygote_pid_(getpid()), control_(std::move(control)) {
    const sigset_t set = zygote_signals();
    sigprocmask(SIG_BLOCK, &set, nullptr);
    signals_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) throw failed_call("signalfd");
  }

  std::optional<WorkerStart> serve(const WorkerFunctions& functions) {
    say(ZygoteReady{kProtocolVersion, functions.torch, functions.takes_expected});
    bool driver_is_there = control_.flush(Wait::kYes) != Channel::Sent::kClosed;
    while (driver_is_there) {
      std::array<pollfd, 2> fds = {{{control_.fd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}}};
      if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) break;
      if (fds[1].revents && !take_signals()) break;
      if (fds[0].revents)
        driver_is_there = control_.receive(Wait::kNo) != Channel::Received::kClosed;
      if (auto worker = obey(driver_is_there, functions)) return worker;
      if (control_.flush(Wait::kYes) == Channel::Sent::kClosed) break;
    }
    kill_all();
    return std::nullopt;
  }

 private:
  void say(const ZygoteEvent& event) { control_.queue(encode(event)); }

  // Returns false when told to end.
  bool take_signals() {
    signalfd_siginfo info;
    bool go_on = true;
    while (read(signals_.get(), &info, sizeof info) == sizeof info)
      go_on = go_on && info.ssi_signo != SIGTERM;
    reap();
    return go_on;
  }

  // Returns, in a new worker only, what it should be.
  std::optional<WorkerStart> obey(bool& driver_is_there, const WorkerFunctions& functions) {
    for (;;) {
      NextFrame next = control_.next();
      if (std::holds_alternative<NoFrameYet>(next)) return std::nullopt;
      auto* frame = std::get_if<Frame>(&next);
      const Decoded<ZygoteRequest> request =
          frame ? decode_zygote_request(*frame) : Decoded<ZygoteRequest>{};
      if (!request.value) {
        std::fprintf(stderr, "the driver's request cannot be read: %s\n", request.error.c_str());
        driver_is_there = false;
        return std::nullopt;
      }
      if (const auto* fork = std::get_if<ForkWorker>(&*request.value)) {
        if (auto worker = fork_worker(*fork, std::move(frame->fds), functions)) return worker;
      } else if (const auto* kill = std::get_if<KillWorker>(&*request.value)) {
        kill_worker(kill->worker);
      }
    }
  }

  std::optional<WorkerStart> fork_worker(const ForkWorker& request, std::vector<UniqueFd> fds,
                                         const WorkerFunctions& functions) {
    if (fds.size() != 3) {
      say(ForkFailed{request.worker, "a request to fork came without its descriptors"});
      return std::nullopt;
    }
    const pid_t pid = functions.fork ? functions.fork() : fork();
    if (pid < 0) {
      const int error = functions.fork ? -pid : errno;
      say(ForkFailed{request.worker, std::string("fork: ") + std::strerror(error)});
    } else if (pid == 0) {
      become_worker();
      if (!request.exec.empty() && !functions.fork) exec_worker(request, fds);
      return WorkerStart{request.role,      request.rank,      request.world_size,
                         std::move(fds[0]), std::move(fds[1]), std::move(fds[2]),
                         request.exec};
    } else {
      setpgid(pid, pid);  // both sides do it, so that it is done whichever runs first
      workers_[pid] = request.worker;
      say(WorkerForked{request.worker, pid});
    }
    return std::nullopt;
  }

  // Gives the worker a process group, so that whatever it starts can be killed with it.
  void become_worker() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != zygote_pid_) _exit(1);  // the zygote died before the line above
    setpgid(0, 0);
    const sigset_t set = zygote_signals();
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
  }

  // Runs this program again with the worker's descriptors; the fork's memory is gone then.
  [[noreturn]] static void exec_worker(const ForkWorker& request,
                                       const std::vector<UniqueFd>& fds) {
    std::vector<std::string> words = {"distgrad-rank", "--worker", std::to_string(request.rank),
                                      std::to_string(request.world_size)};
    for (const UniqueFd& fd : fds) {
      fcntl(fd.get(), F_SETFD, 0);
      words.push_back(std::to_string(fd.get()));
    }
    words.push_back(request.exec);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execv("/proc/self/exe", arguments.data());
    dprintf(fds[2].get(), "a rank cannot be started: %s\n", std::strerror(errno));
    _exit(127);
  }

  void kill_worker(std::uint64_t worker) {
    // It is not reaped yet, so the number is still the worker's.
    for (const auto& [pid, name] : workers_)
      if (name == worker) kill(-pid, SIGKILL);
  }

  // Reports every worker that has ended, and ends what it left behind.
  void reap() {
    for (;;) {
      siginfo_t info{};
      if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
      kill(-info.si_pid, SIGKILL);
      int status = 0;
      waitpid(info.si_pid, &status, 0);
      const auto found = workers_.find(info.si_pid);
      if (found == workers_.end()) continue;
      say(WorkerExited{found->second, status});
      workers_.erase(found);
    }
  }

  void kill_all() {
    for (const auto& [pid, name] : workers_) kill(-pid, SIGKILL);
    end_children_but({});
  }

  pid_t zygote_pid_;
  Channel control_;
  UniqueFd signals_;
  std::map<pid_t, std::uint64_t> workers_;
};

}  // namespace

std::optional<WorkerStart> serve_zygote(UniqueFd control, const WorkerFunctions& functions) {
  return Zygote(std::move(control)).serve(functions);
}

std::optional<WorkerStart> worker_of_arguments(int count, char** words) {
  if (count != 8 || std::strcmp(words[1], "--worker") != 0) return std::nullopt;
  int numbers[5];
  for (int i = 0; i < 5; ++i) {
    const std::string_view text = words[i + 2];
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), numbers[i]);
    if (error != std::errc() || end != text.data() + text.size() || numbers[i] < 0)
      return std::nullopt;
  }
  const auto [rank, world_size, socket, board, output] = numbers;
  // Keeps them from programs that this process starts.
  for (const int fd : {socket, board, output}) fcntl(fd, F_SETFD, FD_CLOEXEC);
  return WorkerStart{WorkerRole::kRank, rank,    world_size, UniqueFd(socket), UniqueFd(board),
                     UniqueFd(output),  words[7]};
}

void be_zygote(int control_fd, const WorkerFunctions& functions) {
  try {
    UniqueFd control(control_fd);
    fcntl(control_fd, F_SETFD, FD_CLOEXEC);
    prctl(PR_SET_NAME, "dg zygote");
    const rlimit no_core_files{0, 0};
    setrlimit(RLIMIT_CORE, &no_core_files);
    adopt_orphans();
    if (functions.prepare) functions.prepare();
    if (std::optional<WorkerStart> worker = serve_zygote(std::move(control), functions))
      be_worker(std::move(*worker), functions);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    std::fflush(nullptr);
    _exit(1);
  }
  _exit(0);
}

}  // namespace distgrad
