#include "launched/agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>

#include "base/adopted_children.h"
#include "base/child_process.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/exit_code.h"
#include "base/interrupts.h"
#include "base/limits.h"
#include "launched/addresses.h"
#include "launched/handshake.h"
#include "launched/programs.h"
#include "launched/remote_worker.h"
#include "launched/secret.h"
#include "protocol/payload.h"

namespace distgrad {
namespace {

constexpr int kConnectMs = 2000;  // timeout for one address and port
constexpr int kHandshakeMs = 5000;
constexpr useconds_t kRetryUs = 100'000;
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

class Agent {
 public:
  explicit Agent(Channel hub) : hub_(std::move(hub)) {}

  // Runs until the hub says end, the connection breaks or a signal comes. Returns the exit code.
  int serve() {
    hear_hub();  // reads what came with the welcome
    while (!code_ && !interrupted_by()) turn();
    if (const int signal = interrupted_by(); signal && !code_) {
      say({"leaving", {signal}, ""});
      hub_.flush(Wait::kNo);
      code_ = 128 + signal;
    }
    workers_.clear();
    programs_.clear();  // ends the workers, and what these left
    return *code_;
  }

  // Says why the connection ended before the hub said end; empty where the hub said it.
  const std::string& complaint() const { return complaint_; }

 private:
  void turn() {
    std::int64_t now = monotonic_ns(), next = kNever;
    for (auto& [id, worker] : workers_) next = std::min(next, worker->watch(now));
    for (auto& [id, program] : programs_) program->flush();
    hub_.flush(Wait::kNo);
    std::vector<pollfd> fds;
    const auto watch = [&](int fd, bool writes) {
      fds.push_back({fd, static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
    };
    watch(interrupts_fd(), false);
    watch(hub_.fd(), hub_.has_queued());
    for (auto& [id, program] : programs_) watch(program->fd(), program->wants_to_write());
    for (auto& [id, worker] : workers_) watch(worker->socket(), worker->wants_to_write());
    timespec left{};
    if (next != kNever) {
      const std::int64_t ns = std::max<std::int64_t>(0, next - monotonic_ns());
      left = {ns / 1'000'000'000, ns % 1'000'000'000};
    } else {
      left = {1, 0};  // looks again for a zygote that does not answer
    }
    ppoll(fds.data(), fds.size(), &left, nullptr);
    if (fds[1].revents & ~POLLOUT) hear_hub();
    for (auto& [id, worker] : workers_) worker->exchange();
    hear_programs();
  }

  void say(const LinkMessage& message) { hub_.queue(encode(message)); }

  void hear_hub() {
    Channel::Received received = Channel::Received::kSome;
    while (received == Channel::Received::kSome && !code_) {
      for (NextFrame next = hub_.next(); !std::holds_alternative<NoFrameYet>(next) && !code_;
           next = hub_.next()) {
        auto* frame = std::get_if<Frame>(&next);
        std::optional<LinkMessage> message = frame ? decode_link(std::move(*frame)) : std::nullopt;
        if (!message) return end_with("sends what cannot be read");
        obey(*message);
      }
      if (!code_) received = hub_.receive(Wait::kNo);
    }
    if (received == Channel::Received::kClosed && !code_)
      end_with(hub_.error() ? std::strerror(hub_.error()) : "it has ended");
  }

  void end_with(const std::string& why) {
    complaint_ = why;
    code_ = static_cast<int>(ExitCode::kBroken);
  }

  void obey(LinkMessage& message) {
    const std::string& kind = message.kind;
    const auto id = static_cast<std::uint64_t>(message.number(0));
    if (kind == "world") return take_world(message);
    if (kind == "program") return start_program(static_cast<int>(id), message.text);
    if (kind == "drop") return drop_program(static_cast<int>(id));
    if (kind == "fork") return fork_worker(id, message);
    if (kind == "end") {
      code_ = static_cast<int>(message.number(0));
      return;
    }
    const auto found = workers_.find(id);
    if (found == workers_.end()) return;
    if (kind == "data")
      found->second->request(std::move(message.text), message.payload);
    else if (kind == "board")
      found->second->take_peers(message.text);
    else if (kind == "close")
      found->second->close();
    else if (kind == "kill")
      found->second->kill();
    else if (kind == "look")
      found->second->look();
  }

  // Sets the variables from which rank programs learn where the others are (docs/protocol.md).
  static void take_world(const LinkMessage& message) {
    const Json json = parse_header(message.text);
    const std::string& own = read_text(field(json, "own"));
    setenv("DISTGRAD_STORE_LISTEN", read_text(field(json, "listen")).c_str(), 1);
    setenv("DISTGRAD_STORE_HOST", read_text(field(json, "store")).c_str(), 1);
    setenv("DISTGRAD_LOCAL_RANK", std::to_string(message.number(0)).c_str(), 1);
    setenv("DISTGRAD_LOCAL_SIZE", std::to_string(message.number(1)).c_str(), 1);
    std::string error;
    const std::vector<Address> addresses = addresses_of(own, &error);
    const std::string interface = addresses.empty() ? "" : interface_with(addresses[0]);
    if (interface.empty()) throw SystemError("no interface of this host has the address " + own);
    setenv("GLOO_SOCKET_IFNAME", interface.c_str(), 0);  // the 0 keeps what the user has set
    setenv("NCCL_SOCKET_IFNAME", interface.c_str(), 0);
  }

  void start_program(int id, const std::string& text) {
    const Json json = parse_header(text);
    std::vector<std::string> command;
    for (const Json& word : read_list(field(json, "command"))) command.push_back(read_text(word));
    for (const auto& [name, value] : field(json, "environment").items())
      setenv(name.c_str(), read_text(value).c_str(), 1);
    programs_[id] = std::make_unique<ZygoteProcess>(here(std::move(command)));
  }

  void drop_program(int id) {
    const auto program = programs_.find(id);
    if (program == programs_.end()) return;
    std::erase_if(workers_, [&](const auto& worker) {
      return &worker.second->zygote() == program->second.get();
    });
    programs_.erase(program);
  }

  void fork_worker(std::uint64_t id, const LinkMessage& message) {
    const auto program = programs_.find(static_cast<int>(message.number(1)));
    if (program == programs_.end())
      return say({"fork_failed", {static_cast<std::int64_t>(id)}, "there is no such program"});
    workers_[id] =
        std::make_unique<RemoteWorker>(id, *program->second, static_cast<int>(message.number(2)),
                                       static_cast<int>(message.number(3)), message.text,
                                       [this](const LinkMessage& m) { say(m); });
  }

  void hear_programs() {
    std::vector<int> ended;
    for (auto& [id, program] : programs_) {
      for (const ZygoteEvent& event : program->exchange()) take_event(id, *program, event);
      if (const std::string why = program->why_silent(); !why.empty()) {
        program->end_now();
        ended.push_back(id);
        say({"ended", {id}, "the process that starts the ranks " + why});
      } else if (program->has_ended()) {
        ended.push_back(id);
        say({"ended", {id}, program->end_text()});
      }
    }
    for (const int id : ended) drop_program(id);
  }

  void take_event(int id, const ZygoteProcess& program, const ZygoteEvent& event) {
    if (const auto* ready = std::get_if<ZygoteReady>(&event))
      return say({"ready", {id}, ready->torch});
    const auto of = [&](std::uint64_t name) {
      return std::find_if(workers_.begin(), workers_.end(), [&](const auto& worker) {
        return &worker.second->zygote() == &program && worker.second->name() == name;
      });
    };
    if (const auto* forked = std::get_if<WorkerForked>(&event)) {
      if (const auto worker = of(forked->worker); worker != workers_.end())
        worker->second->on_forked(forked->pid);
    } else if (const auto* failed = std::get_if<ForkFailed>(&event)) {
      if (const auto worker = of(failed->worker); worker != workers_.end())
        say({"fork_failed", {static_cast<std::int64_t>(worker->first)}, failed->message});
    } else if (const auto* exited = std::get_if<WorkerExited>(&event)) {
      const auto worker = of(exited->worker);
      if (worker == workers_.end()) return;
      worker->second->on_exited(exited->wait_status);
      workers_.erase(worker);
    }
  }

  Channel hub_;
  std::map<int, std::unique_ptr<ZygoteProcess>> programs_;
  std::map<std::uint64_t, std::unique_ptr<RemoteWorker>> workers_;  // run by the programs above
  std::optional<int> code_;
  std::string complaint_;
};

// Tries all addresses and ports until rank 0 is there. Returns nothing if interrupted before.
std::optional<Channel> meet(const LaunchedWorld& world) {
  const std::string secret = shared_secret();
  const JoiningRank self = joining_rank_of(world);
  const std::int64_t end = monotonic_ns() + std::int64_t{world.wait_s} * 1'000'000'000;
  std::string error = "nobody listens there";
  bool met_stranger = false;
  while (monotonic_ns() < end && !interrupted_by()) {
    for (Address address : addresses_of(world.meeting_host, &error))
      for (int port = world.first_port; port < world.first_port + kPortsTried; ++port) {
        address.set_port(port);
        UniqueFd socket = connect_to(address, kConnectMs);
        if (!socket) continue;
        watch_connection(socket.get());
        Welcome welcome =
            ask_for_admission(std::move(socket), self, world.job, secret, kHandshakeMs);
        if (welcome.channel) return std::move(welcome.channel);
        if (!welcome.refused.empty())
          throw UserError(fmt::format("rank 0 at {} does not take rank {}: {}", address.text(),
                                      world.rank, welcome.refused));
        met_stranger = true;
      }
    usleep(kRetryUs);
  }
  if (interrupted_by()) return std::nullopt;
  const char* hint =
      met_stranger
          ? "; who listens there does not know this job's secret: set DISTGRAD_SECRET to the same "
            "secret for all ranks"
          : "";
  throw SystemError(fmt::format("rank {} on {} found no rank 0 at {}, ports {} to {}: {}{}",
                                world.rank, self.host, world.meeting_host, world.first_port,
                                world.first_port + kPortsTried - 1, error, hint));
}

int serve(Channel hub, const std::string& who) {
  raise_descriptor_limit();
  Limits limits = distgrad::limits();
  limits.host_network = true;  // a rank with a network of its own would meet nobody
  set_limits(limits);
  const std::set<pid_t> before = current_children();
  adopt_orphans();
  Agent agent(std::move(hub));
  const int code = agent.serve();
  std::set<pid_t> kept = started_children();
  kept.insert(before.begin(), before.end());
  end_children_but(kept);
  if (!agent.complaint().empty())
    fmt::print(stderr, "distgrad: {}: the connection to rank 0 is lost: {}\n", who,
               agent.complaint());
  return code;
}

}  // namespace

int follow(const LaunchedWorld& world) {
  const Interrupts interrupts;
  ::signal(SIGPIPE, SIG_IGN);
  std::optional<Channel> hub = meet(world);
  if (!hub) return 128 + interrupted_by();
  prctl(PR_SET_NAME, fmt::format("dg agent {}", world.rank).c_str());
  return serve(std::move(*hub),
               fmt::format("rank {} on {}", world.rank, joining_rank_of(world).host));
}

int be_agent() {
  const Interrupts interrupts;
  ::signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_NAME, "dg agent 0");
  fcntl(kInheritedFd, F_SETFD, FD_CLOEXEC);
  Channel hub{UniqueFd(kInheritedFd)};
  hub.set_limits({std::size_t{1} << 31, std::size_t{1} << 40});
  serve(std::move(hub), "rank 0");
  return 0;
}

}  // namespace distgrad
