#include "pool/zygote_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/child_process.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory_file.h"
#include "base/version.h"
#include "pool/installation.h"
#include "pool/rank_sight.h"

namespace distgrad {
namespace {

// Gives each process one thread: many ranks share the cores, and a thread pool in the zygote would
// not survive the fork.
const std::vector<std::pair<std::string, std::string>> kEnvironment = {
    {"OMP_NUM_THREADS", "1"}, {"MKL_NUM_THREADS", "1"}, {"OPENBLAS_NUM_THREADS", "1"}};

// Large pages make loading torch some 10 % shorter, since fewer pages fault and, at each fork, are
// mapped. Autograd makes and frees the same few sizes by the hundred; if each thread keeps 100 of a
// size in place of 7, many small cases take some 8 % less processor time.
constexpr const char* kMallocVariable = "GLIBC_TUNABLES";
constexpr const char* kMallocTunables = "glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=100";

std::vector<std::pair<std::string, std::string>> environment() {
  auto variables = kEnvironment;
  variables.emplace_back("DISTGRAD_RANK_LIBRARY", executable_folder() / "libdistgrad_rank.so");
  variables.emplace_back("DISTGRAD_RANK_TORCH", kTorchVersion);
  if (!std::getenv(kMallocVariable)) variables.emplace_back(kMallocVariable, kMallocTunables);
  return variables;
}

constexpr int kEndMs = 5000;  // it only has to kill and reap
// Limit how long a request to fork may wait, for a stopped zygote and for one that is only slow.
constexpr std::int64_t kForkStoppedNs = std::int64_t{2} * 1'000'000'000;
constexpr std::int64_t kForkLookNs = std::int64_t{1} * 1'000'000'000;
constexpr std::int64_t kForkNs = std::int64_t{60} * 1'000'000'000;

std::shared_ptr<const UniqueFd> shared(UniqueFd fd) {
  return std::make_shared<const UniqueFd>(std::move(fd));
}

}  // namespace

ZygoteProcess::ZygoteProcess(std::vector<std::string> command)
    : command_(std::move(command)), output_(create_output_file()), started_ns_(monotonic_ns()) {
  auto [ours, theirs] = make_socket_pair();
  ChildCommand child{command_, environment(), theirs.get(), output_.get()};
  child.arguments.insert(child.arguments.end(), {"--zygote", std::to_string(kInheritedFd)});
  child.is_expendable = true;
  pid_ = start_child(child);
  control_ = std::make_unique<Channel>(std::move(ours));
}

ZygoteProcess::ZygoteProcess(std::vector<std::string> command, UniqueFd control)
    : command_(std::move(command)),
      control_(std::make_unique<Channel>(std::move(control))),
      is_elsewhere_(true),
      started_ns_(monotonic_ns()) {}

ZygoteProcess::~ZygoteProcess() {
  control_.reset();  // tells it to end
  if (pid_ > 0) wait_for_end();
}

int ZygoteProcess::wait_for_end() {
  // A descriptor of the process gives the wait a limit without a busy loop.
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  pollfd fd{process.get(), POLLIN, 0};
  int ready = 0;
  // A stopped zygote does not hear that it should end, and its workers die with it.
  const bool is_stopped = process_state(pid_) == 'T';
  do {
    ready = poll(&fd, 1, is_stopped ? 0 : kEndMs);
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  forget_child(pid_);
  pid_ = 0;
  return status;
}

std::uint64_t ZygoteProcess::fork_worker(ForkWorker request, UniqueFd socket,
                                         std::shared_ptr<const UniqueFd> board,
                                         std::shared_ptr<const UniqueFd> output) {
  const std::uint64_t worker = request.worker = ++last_worker_;
  if (unforked_.empty()) waiting_since_ns_ = monotonic_ns();
  unforked_.insert(worker);
  control_->queue(
      encode(request, {shared(std::move(socket)), std::move(board), std::move(output)}));
  return worker;
}

void ZygoteProcess::kill_worker(std::uint64_t worker) {
  if (has_ended_) return;  // the kernel has done it then
  control_->queue(encode(KillWorker{worker}));
  control_->flush(Wait::kNo);
}

std::vector<ZygoteEvent> ZygoteProcess::exchange() {
  if (!has_ended_) receive();
  return std::exchange(events_, {});
}

void ZygoteProcess::receive() {
  if (control_->flush(Wait::kNo) == Channel::Sent::kClosed) has_ended_ = true;
  if (control_->receive(Wait::kNo) == Channel::Received::kClosed) has_ended_ = true;
  for (;;) {
    NextFrame next = control_->next();
    if (std::holds_alternative<NoFrameYet>(next)) return;
    const auto* frame = std::get_if<Frame>(&next);
    Decoded<ZygoteEvent> event =
        frame ? decode_zygote_event(*frame)
              : Decoded<ZygoteEvent>{std::nullopt, std::get<BadFrame>(next).reason};
    if (!event.value) {
      complaint_ = event.error;
      has_ended_ = true;
      return;
    }
    take(std::move(*event.value));
  }
}

void ZygoteProcess::take(ZygoteEvent event) {
  if (const auto* ready = std::get_if<ZygoteReady>(&event)) {
    ready_ns_ = monotonic_ns();
    torch_ = ready->torch;
    takes_expected_ = ready->takes_expected;
    if (ready->protocol != kProtocolVersion)
      throw SystemError(command_[0] + " speaks version " + std::to_string(ready->protocol) +
                        " of the rank protocol, not " + std::to_string(kProtocolVersion));
  }
  if (const auto* forked = std::get_if<WorkerForked>(&event)) answered(forked->worker);
  if (const auto* failed = std::get_if<ForkFailed>(&event)) answered(failed->worker);
  if (const auto* lost = std::get_if<ZygoteLost>(&event)) {
    if (lost->is_final) throw SystemError(lost->message);
    complaint_ = lost->message;
    has_ended_ = true;
  }
  events_.push_back(std::move(event));
}

std::map<std::uint64_t, WorkerSeen> ZygoteProcess::look(const std::vector<std::uint64_t>& workers) {
  for (const std::uint64_t worker : workers) control_->queue(encode(LookAtWorker{worker}));
  std::map<std::uint64_t, WorkerSeen> seen;
  const std::int64_t end = monotonic_ns() + kForkLookNs;
  for (std::int64_t now = monotonic_ns(); seen.size() < workers.size() && !has_ended_ && now < end;
       now = monotonic_ns()) {
    control_->flush(Wait::kNo);
    pollfd fd{control_->fd(), static_cast<short>(wants_to_write() ? POLLIN | POLLOUT : POLLIN), 0};
    poll(&fd, 1, static_cast<int>((end - now) / 1'000'000 + 1));
    receive();
    for (const ZygoteEvent& event : events_)
      if (const auto* answer = std::get_if<WorkerSeen>(&event); answer && answer->at)
        seen[answer->worker] = *answer;
  }
  return seen;
}

void ZygoteProcess::answered(std::uint64_t worker) {
  unforked_.erase(worker);
  waiting_since_ns_ = monotonic_ns();
}

std::string ZygoteProcess::why_silent() const {
  if (has_ended_ || unforked_.empty()) return "";
  const std::int64_t silent = monotonic_ns() - std::max(waiting_since_ns_, started_ns_);
  if (silent > kForkStoppedNs && pid_ > 0 && process_state(pid_) == 'T') return "was stopped";
  return is_ready() && silent > kForkNs ? "does not answer" : "";
}

void ZygoteProcess::end_now() {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

std::string ZygoteProcess::end_text() {
  if (is_elsewhere_) return complaint_.empty() ? "ended" : complaint_;
  if (!complaint_.empty() || pid_ == 0) return "sent what cannot be read: " + complaint_;
  std::string text = exit_description(wait_for_end());
  std::string said = read_output(output_.get(), 4096);
  while (!said.empty() && said.back() == '\n') said.pop_back();
  if (!said.empty()) text += ": " + said;
  return text;
}

}  // namespace distgrad
