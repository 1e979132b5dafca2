// Drives from rank 0's process where a launcher has started several. All ranks, its own too, are
// served elsewhere.
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
  // Listens for the other ranks, which need not be there yet, and returns at once. Afterwards no
  // process that this one starts takes itself for a rank. Throws SystemError.
  explicit Leader(const LaunchedWorld& world);
  ~Leader();
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  const LaunchedWorld& world() const { return world_; }

  // Returns the control socket of a zygote that runs this command on every rank's host.
  UniqueFd open(const std::vector<std::string>& command);

  // Returns where the ranks are; empty until all have come.
  const std::vector<HostOfRank>& hosts();

  // Returns the host names by rank; empty where the ranks are not on several hosts.
  std::vector<std::string> host_names();
  // Returns for example "On the 4 ranks of Slurm: ranks 0-1 on n0, ranks 2-3 on n1."
  std::string where();

  // Says which ranks are lost, with their hosts and how; empty where none is. Waits up to 0.3 s for
  // the hub to notice.
  std::string loss();

  // Makes the others exit with this code. The destructor waits until they are gone.
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

// Returns this process's leader; null where no launcher has started it, or it alone.
Leader* leader();

}  // namespace distgrad
