// Represents a zygote in the driver: starts it, asks it for workers, hears what became of them. It
// is passive: call exchange() when its descriptor is ready. Destroying it ends the zygote and all
// workers. One that is elsewhere (its ranks are on other machines, say) is not started here, and
// its workers have no process on this machine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "protocol/channel.h"
#include "protocol/messages.h"

namespace distgrad {

class ZygoteProcess {
 public:
  // Appends "--zygote FD" to `command`. Throws SystemError if no process can be made.
  explicit ZygoteProcess(std::vector<std::string> command);
  // Takes a zygote elsewhere, at the other end of `control`. `command` is its name in messages.
  ZygoteProcess(std::vector<std::string> command, UniqueFd control);
  ~ZygoteProcess();
  ZygoteProcess(const ZygoteProcess&) = delete;
  ZygoteProcess& operator=(const ZygoteProcess&) = delete;

  // May be called at once, since requests wait until the zygote has loaded. Returns the worker's
  // name, which `request` need not have.
  std::uint64_t fork_worker(ForkWorker request, UniqueFd socket,
                            std::shared_ptr<const UniqueFd> board,
                            std::shared_ptr<const UniqueFd> output);
  void kill_worker(std::uint64_t worker);

  void flush() { control_->flush(Wait::kNo); }

  int fd() const { return control_->fd(); }
  bool wants_to_write() const { return control_->has_queued(); }

  // Sends and receives what is possible without waiting. Throws SystemError if the zygote says that
  // it is lost for good.
  std::vector<ZygoteEvent> exchange();

  // Asks a zygote elsewhere what can be seen of these workers, and waits up to a second for the
  // answers. Returns them by worker.
  std::map<std::uint64_t, WorkerSeen> look(const std::vector<std::uint64_t>& workers);

  bool is_elsewhere() const { return is_elsewhere_; }
  bool has_ended() const { return has_ended_; }
  bool is_ready() const { return ready_ns_ > 0; }
  std::int64_t ready_ns() const { return ready_ns_; }  // since when it is ready; 0: not yet
  const std::string& torch() const { return torch_; }
  bool takes_expected() const { return takes_expected_; }
  std::int64_t started_ns() const { return started_ns_; }
  pid_t pid() const { return pid_; }
  const std::vector<std::string>& command() const { return command_; }

  // Returns why nothing more can be expected of it, since it was asked for a worker and made none,
  // or "".
  std::string why_silent() const;
  void end_now();

  // Says how it ended and what it said about that. Call it only after has_ended().
  std::string end_text();

 private:
  int wait_for_end();
  void receive();
  void take(ZygoteEvent event);
  void answered(std::uint64_t worker);

  std::vector<std::string> command_;
  UniqueFd output_;
  std::unique_ptr<Channel> control_;
  pid_t pid_ = 0;
  bool is_elsewhere_ = false;
  std::int64_t started_ns_ = 0;
  std::uint64_t last_worker_ = 0;
  std::set<std::uint64_t> unforked_;   // workers asked for
  std::int64_t waiting_since_ns_ = 0;  // for the next of them
  std::int64_t ready_ns_ = 0;
  bool has_ended_ = false;
  bool takes_expected_ = false;
  std::string torch_;
  std::string complaint_;            // our complaint about what it sent, or what it said of its end
  std::vector<ZygoteEvent> events_;  // received and not yet handed on
};

}  // namespace distgrad
