// A rank's connections, one for each group it has taken part in, made at first use and kept.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/connection.h"
#include "backends/gloo_traits.h"
#include "protocol/board.h"

namespace distgrad {

class GroupConnections {
 public:
  GroupConnections(int rank, int world_size, Board* board, GlooTraits traits);

  // `ranks` lists the group's members in group order and contains this rank. All members must ask in the same order of
  // groups. Blocks until all have.
  Connection& of(const std::vector<int>& ranks);

  // What was composed on any connection since the last call.
  std::set<std::string> take_composed();

 private:
  c10::intrusive_ptr<c10d::Store> store();

  int rank_;
  int world_size_;
  Board* board_;
  GlooTraits traits_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::map<std::vector<int>, std::unique_ptr<Connection>> connections_;
};

}  // namespace distgrad
