#include "rank/group_connections.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "rank/backends/meeting.h"

namespace distgrad {
namespace {

// Discards what is written to standard error during its life. c10d complains there of hosts that
// have an address and no name; real failures are thrown.
class MutedErrors {
 public:
  MutedErrors() : kept_(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)) {
    std::fflush(stderr);
    const UniqueFd null(open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (kept_ && null) dup2(null.get(), STDERR_FILENO);
  }
  ~MutedErrors() {
    std::fflush(stderr);
    if (kept_) dup2(kept_.get(), STDERR_FILENO);
  }
  MutedErrors(const MutedErrors&) = delete;
  MutedErrors& operator=(const MutedErrors&) = delete;

 private:
  UniqueFd kept_;
};

// Makes the board say, during its life, that this rank connects.
class Connecting {
 public:
  explicit Connecting(std::atomic<Phase>& phase)
      : phase_(phase), before_(phase.exchange(Phase::kConnect)) {}
  ~Connecting() { phase_ = before_; }
  Connecting(const Connecting&) = delete;
  Connecting& operator=(const Connecting&) = delete;

 private:
  std::atomic<Phase>& phase_;
  Phase before_;
};

c10::intrusive_ptr<c10d::TCPStore> connected(const c10d::TCPStoreOptions& options) {
  const MutedErrors muted;
  return c10::make_intrusive<c10d::TCPStore>(store_host(), options);
}

}  // namespace

GroupConnections::GroupConnections(int rank, int world_size, Board* board,
                                   const std::string& backend, const std::string& device)
    : rank_(rank),
      world_size_(world_size),
      board_(board),
      backend_(backend, device, rank, world_size) {}

c10::intrusive_ptr<c10d::Store> GroupConnections::store() {
  if (store_) return store_;
  c10d::TCPStoreOptions options;
  options.isServer = rank_ == 0;
  options.waitWorkers = false;
  options.timeout = std::chrono::hours(24);  // the driver watches the clock
  if (rank_ != 0) {
    // Rank 0 is up within milliseconds; if it never comes the driver ends this process.
    while (board_->store_port.load(std::memory_order_acquire) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    options.port = static_cast<std::uint16_t>(board_->store_port.load(std::memory_order_acquire));
  } else {
    StoreListener listener = listen_for_ranks();
    options.port = listener.port;
    options.masterListenFd = listener.socket.release();
  }
  auto store = connected(options);
  if (rank_ == 0) board_->store_port.store(store->getPort(), std::memory_order_release);
  store_ = std::move(store);
  return store_;
}

Connection& GroupConnections::of(const std::vector<int>& ranks) {
  std::unique_ptr<Connection>& connection = connections_[ranks];
  if (!connection) {
    const Connecting connecting(board_->ranks[rank_].phase);
    std::string name = "distgrad";
    for (const int r : ranks) name += "," + std::to_string(r);
    const int place =
        static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
    connection = backend_.connect(c10::make_intrusive<c10d::PrefixStore>(name, store()), place,
                                  static_cast<int>(ranks.size()), name);
  }
  return *connection;
}

std::set<std::string> GroupConnections::take_composed() {
  std::set<std::string> all;
  for (auto& [ranks, connection] : connections_)
    if (connection) all.merge(connection->take_composed());
  return all;
}

}  // namespace distgrad
