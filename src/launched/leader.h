// Rank 0's process where a launcher has started several: it drives, and the ranks, its own among
// them, are elsewhere.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "launched/hosts.h"
#include "launched/world.h"
#include "protocol/channel.h"

namespace distgrad {

class Leader {
 public:
  // Listens for the other ranks, which need not be there yet, and returns at once. From now on no
  // process that this one starts takes itself for a rank. Throws UserError, SystemError.
  explicit Leader(const LaunchedWorld& world);
  ~Leader();
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  const LaunchedWorld& world() const { return world_; }

  // The control socket of a zygote that runs this command on every rank's host.
  UniqueFd open(const std::vector<std::string>& command);

  // Where the ranks are; empty while not all have come.
  const std::vector<HostOfRank>& hosts();

  // By rank, where they are on several hosts; else empty.
  std::vector<std::string> host_names();
  // "On the 4 ranks of Slurm: ranks 0-1 on n0, ranks 2-3 on n1."
  std::string where();

  // Which ranks are lost, with their hosts and how, if some are; waits a moment for it.
  std::string loss();

  // Has the others exit with this code, and waits until they are gone.
  void finish(int code);

 private:
  void hear();
  void say(const std::string& header, std::vector<std::shared_ptr<const UniqueFd>> fds = {});

  LaunchedWorld world_;
  std::unique_ptr<Channel> hub_;
  pid_t hub_pid_ = 0;
  std::vector<HostOfRank> hosts_;
  std::string loss_;
};

// This process's; null: no launcher has started it, or it alone.
Leader* leader();

}  // namespace distgrad
