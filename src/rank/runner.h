// Runs one real rank: keeps its connections and runs one case after another.
#pragma once

#include <memory>

#include "model/run_result.h"
#include "protocol/board.h"
#include "protocol/expected_values.h"

namespace distgrad {

class Runner {
 public:
  // Must be made in the forked rank process, before any other use of torch there. Connects at the
  // first case. `board` is shared with the driver and the other ranks; not owned.
  Runner(int rank, int world_size, Board* board);
  ~Runner();

  // Blocks until this rank's part of the case is done. Never throws for what the case does: that is
  // RankResult::error or ::skipped. After an error of kind "exception" in a collective the pool
  // must be replaced, since peers may be out of step. Result tensors that equal an `expected`
  // tensor bit for bit are that tensor.
  RankResult run(const RunRequest&, const ExpectedValues* expected = nullptr);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace distgrad
