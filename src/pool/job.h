// Follows one request from submission to completion.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/run_result.h"
#include "protocol/messages.h"

namespace distgrad {

using Ticket = std::uint64_t;

// Says who can do a request: the workers of one program, in one role, of one world size (1 for
// simulators) and one transport.
struct TeamKind {
  int rank_program = 0;  // 0: distgrad-rank; others are interpreters with users' code
  WorkerRole role = WorkerRole::kSimulator;
  int world_size = 1;
  // Names what carries the collectives, if that is not Gloo on the CPU: "nccl on cuda". Such ranks
  // are new programs, not forks.
  std::string transport = {};
  // Has, by rank, its place among a launcher's processes (ForkWorker::place); empty means its own
  // number.
  std::vector<int> places = {};
  auto operator<=>(const TeamKind&) const = default;
};

inline std::string transport_of(const std::string& backend, const std::string& device) {
  const bool usual = backend == "gloo" && (device.empty() || device == "cpu");
  return usual ? "" : backend + " on " + (device.empty() ? "cpu" : device);
}

struct Job {
  Ticket ticket = 0;
  TeamKind kind;
  AnyRequest request;
  double timeout_s = 30;
  std::shared_ptr<const ExpectedValues> expected = {};  // of a run
  // The job runs alone on fresh workers, after a failure that another case may have caused.
  bool is_second_run = false;

  const Program& program() const {
    return std::visit([](const auto& r) -> const Program& { return r.program; }, request);
  }
};

// Holds what became of a simulation.
struct SimulationRun {
  Simulation simulation;           // unless there is an error
  std::optional<RankError> error;  // the simulator died, hung or raised; its rank is -1
  std::string output;
  double elapsed_s = 0;
  SharedPayload payload = {};  // where the simulation's large tensors are
};

struct Completion {
  Ticket ticket = 0;
  std::variant<SimulationRun, DistributedRun> result;
};

}  // namespace distgrad
