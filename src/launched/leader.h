// Rank 0's process where a launcher has started several: it drives, and the ranks, its own among them, are elsewhere.
#pragma once

#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "launched/hosts.h"
#include "launched/world.h"
#include "protocol/channel.h"

namespace distgrad {

class Leader {
 public:
  // Listens for the other ranks, which need not be there yet, and returns at once. From now on no process that this one starts
  // takes itself for a rank. Throws UserError, SystemError.
  explicit Leader(const LaunchedWorld& world);
  ~Leader();
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  const LaunchedWorld& world() const { return world_; }

  // The control socket of a zygote that runs this command on every rank's host.
  UniqueFd open(const std::vector<std::string>& command);

  // Where the ranks are; empty while not all have come.
  const std::vector<HostOfRank>& hosts();

  // Has the others exit with this code, and waits until they are gone.
  void finish(int code);

 private:
  void say(const std::string& header, std::vector<std::shared_ptr<const UniqueFd>> fds = {});

  LaunchedWorld world_;
  std::unique_ptr<Channel> hub_;
  pid_t hub_pid_ = 0;
  std::vector<HostOfRank> hosts_;
};

// This process's; null: no launcher has started it, or it alone.
Leader* leader();

}  // namespace distgrad
