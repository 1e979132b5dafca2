#include "launched/leader.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>

#include "base/child_process.h"
#include "base/clock.h"
#include "base/limits.h"
#include "launched/addresses.h"
#include "launched/agent.h"
#include "launched/hub.h"
#include "launched/programs.h"
#include "launched/secret.h"
#include "model/backends.h"
#include "protocol/payload.h"

namespace distgrad {
namespace {

Leader* only = nullptr;

constexpr std::int64_t kLossNs = 300'000'000;  // time for the hub to notice and say it

}  // namespace

Leader* leader() { return only; }

Leader::Leader(const LaunchedWorld& world) : world_(world) {
  shared_secret();  // throws before there is a hub, which could only die of it
  UniqueFd listening = listen_at(world.meeting_host, world.first_port, !world.is_on_one_host());
  setenv("DISTGRAD_LAUNCHER", "none", 1);
  auto [ours, theirs] = make_socket_pair();
  hub_pid_ = start_child({{"/proc/self/exe", kHubWord}, {}, theirs.get(), -1});
  hub_ = std::make_unique<Channel>(std::move(ours));
  say(header_text({{"kind", "listen"},
                   {"job", world.job},
                   {"size", world.size},
                   {"local_rank", world.local_rank},
                   {"local_size", world.local_size},
                   {"wait_s", world.wait_s}}),
      {std::make_shared<const UniqueFd>(std::move(listening))});
  only = this;
}

Leader::~Leader() {
  only = nullptr;
  hub_.reset();
  if (hub_pid_ > 0)
    while (waitpid(hub_pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
}

void Leader::say(const std::string& header, std::vector<std::shared_ptr<const UniqueFd>> fds) {
  hub_->queue(make_frame(header, {}, std::move(fds)));
  hub_->flush(Wait::kYes);
}

UniqueFd Leader::open(const std::vector<std::string>& command) {
  auto [ours, theirs] = make_socket_pair();
  Json environment = Json::object();
  for (const char* name : {kMemoryVariable, kShareGpuVariable})
    if (const char* value = std::getenv(name)) environment[name] = value;
  say(header_text({{"kind", "open"},
                   {"command", anywhere(command)},
                   {"environment", std::move(environment)}}),
      {std::make_shared<const UniqueFd>(std::move(theirs))});
  return std::move(ours);
}

void Leader::hear() {
  hub_->receive(Wait::kNo);
  for (NextFrame next = hub_->next(); std::holds_alternative<Frame>(next); next = hub_->next()) {
    const Json json = parse_header(std::get<Frame>(next).header);
    if (read_text(field(json, "kind")) == "lost") {
      loss_ = read_text(field(json, "message"));
      continue;
    }
    for (const Json& host : read_list(field(json, "hosts")))
      hosts_.push_back({read_text(field(host, "host")), read_text(field(host, "address"))});
  }
}

const std::vector<HostOfRank>& Leader::hosts() {
  hear();
  return hosts_;
}

std::vector<std::string> Leader::host_names() {
  std::vector<std::string> names;
  if (hosts_text(hosts()).empty()) return names;
  for (const HostOfRank& host : hosts_) names.push_back(host.host);
  return names;
}

std::string Leader::where() {
  const std::string several = hosts_text(hosts());
  return fmt::format("On the {} ranks of {}{}{}.", world_.size, world_.launcher,
                     several.empty() ? "" : ": ", several);
}

std::string Leader::loss() {
  hear();
  const std::int64_t end = monotonic_ns() + kLossNs;
  for (std::int64_t now = monotonic_ns(); loss_.empty() && now < end; now = monotonic_ns()) {
    pollfd fd{hub_->fd(), POLLIN, 0};
    if (poll(&fd, 1, static_cast<int>((end - now) / 1'000'000 + 1)) > 0 && (fd.revents & POLLHUP))
      break;
    hear();
  }
  return loss_;
}

void Leader::finish(int code) { say(header_text({{"kind", "end"}, {"code", code}})); }

}  // namespace distgrad
