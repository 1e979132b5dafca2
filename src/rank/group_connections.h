// Holds a rank's connections, one for each group it has taken part in. Makes them at first use.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "protocol/board.h"
#include "rank/backends/backend_on_rank.h"

namespace distgrad {

class GroupConnections {
 public:
  // Throws UnavailableBackend if the backend cannot be used. The first use of a connection blocks
  // until rank 0 has its store.
  GroupConnections(int rank, int world_size, Board* board, const std::string& backend,
                   const std::string& device);

  // `ranks` lists the group's members in group order and contains this rank. All members must ask
  // for groups in the same order. Blocks until all have asked.
  Connection& of(const std::vector<int>& ranks);

  const std::string& backend() const { return backend_.name(); }
  at::Device device() const { return backend_.device(); }

  // Returns what was composed on any connection since the last call.
  std::set<std::string> take_composed();

 private:
  c10::intrusive_ptr<c10d::Store> store();

  int rank_;
  int world_size_;
  Board* board_;
  BackendOnRank backend_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::map<std::vector<int>, std::unique_ptr<Connection>> connections_;
};

}  // namespace distgrad
