// A worker is the loop of a simulator or rank. It takes requests from its data socket, in order,
// until the socket closes. Functions say how to run them, so that this side of the protocol can be
// tested without torch.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "model/run_result.h"
#include "protocol/board.h"
#include "protocol/messages.h"

namespace distgrad {

// `expected` may be null. Tensors of the result may be those of `expected`.
using RunCase = std::function<RankResult(const RunRequest&, const ExpectedValues* expected)>;

// Holds the functions that main() provides. An exception from one is an error of the case.
struct WorkerFunctions {
  std::string torch;              // its version
  bool takes_expected = false;    // see ZygoteReady
  std::function<void()> prepare;  // in the zygote, before the first fork; starts no thread
  std::function<void()> start;    // in each worker, before the first request
  std::function<Simulation(const SimulateRequest&)> simulate;
  std::function<RunCase(int rank, int world_size, Board*)> make_runner;
  std::function<std::vector<NotedCall>()> take_entered = {};  // calls of the last case; may be null
  // If set, answers each request in place of simulate and make_runner, and keeps the worker's slot
  // of the board up to date. Of its reply the worker changes only `output`.
  std::function<WorkReply(const Frame&, RankSlot&)> answer = {};
  // If set, forks in place of fork(), as Python has to hear of a fork. Returns -errno if it fails.
  std::function<int()> fork = {};
};

// Holds what the zygote hands to a worker.
struct WorkerStart {
  WorkerRole role = WorkerRole::kRank;
  int rank = 0;
  int world_size = 1;
  UniqueFd socket;
  UniqueFd board;
  UniqueFd output;
  std::string transport = {};  // "nccl on cuda"; empty: Gloo on the CPU
};

// Turns this process into the worker: sends standard output and error to the file and ignores
// SIGINT. Returns the exit status. Then call _exit: connections may wait for peers, and libtorch's
// teardown is slow.
int run_worker(WorkerStart start, const WorkerFunctions& functions);
[[noreturn]] void be_worker(WorkerStart start, const WorkerFunctions& functions);

}  // namespace distgrad
