// A worker: the loop of a simulator or rank. It takes requests from its data socket, in order,
// until the socket closes. What it does with them is given by functions, so that this side of the
// protocol can be tested without torch.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "model/run_result.h"
#include "protocol/board.h"
#include "protocol/messages.h"

namespace distgrad {

// `expected` may be null; tensors of the result may be its own.
using RunCase = std::function<RankResult(const RunRequest&, const ExpectedValues* expected)>;

// What main() provides. Each may throw: that is an error of the case.
struct WorkerFunctions {
  std::string torch;              // its version
  bool takes_expected = false;    // as ZygoteReady
  std::function<void()> prepare;  // in the zygote, before the first fork; starts no thread
  std::function<void()> start;    // in each worker, before the first request
  std::function<Simulation(const SimulateRequest&)> simulate;
  std::function<RunCase(int rank, int world_size, Board*)> make_runner;
  std::function<std::vector<NotedCall>()> take_entered = {};  // of the last case; may be null
};

// What the zygote hands to a worker.
struct WorkerStart {
  WorkerRole role = WorkerRole::kRank;
  int rank = 0;
  int world_size = 1;
  UniqueFd socket;
  UniqueFd board;
  UniqueFd output;
  std::string transport = {};  // "nccl on cuda"; empty: Gloo on the CPU
};

// Makes this process the worker: standard output and error go to the file, SIGINT is ignored. Ends
// the process.
[[noreturn]] void be_worker(WorkerStart start, const WorkerFunctions& functions);

}  // namespace distgrad
