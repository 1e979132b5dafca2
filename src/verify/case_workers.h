// Asks simulators and ranks for what a case needs, now or after the requests that wait.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "judge/machine.h"
#include "model/run_result.h"
#include "model/scenario.h"
#include "pool/worker_pool.h"
#include "verify/rank_programs.h"

namespace distgrad {

// Whatever waits for an answer throws this when the process was interrupted (interrupted_by()).
struct Interrupted {};

// Returns true for cases on a GPU, whose less accurate functions give the same truth wider bounds.
bool is_on_gpu(const Case&);

// Makes the request for the case's run. `program` may differ from the case's own.
RunRequest run_request(const Case&, const Program& program);

class CaseWorkers {
 public:
  CaseWorkers(const RankPrograms& programs, WorkerPool& pool) : programs_(programs), pool_(pool) {}

  // Starts the case's ranks before it needs them.
  void prepare_for(const Case&);

  // Asks for a SimulationRun or, if only the ranks can measure the truth, a DistributedRun for
  // measured().
  Ticket ask_truth(const SimulateRequest&, const Case&);
  Ticket ask_run(const RunRequest&, const Case&,
                 std::shared_ptr<const ExpectedValues> expected = {});
  // Returns nothing if nothing is outstanding, or if the process was interrupted. Throws
  // SystemError if the ranks' torch is not the one that this was built with.
  std::optional<Completion> next();

  // Runs before all that waits. If it failed, `simulation.invalid` says so, too. Throws
  // Interrupted.
  SimulationRun simulate_now(const SimulateRequest&, const Case&);
  // Runs after the runs that wait already, since the ranks have been handed those. Throws
  // Interrupted.
  DistributedRun run_now(const RunRequest&, const Case&);

  // Returns why one of the above died twice since the last call, or "" if none did.
  std::string take_lost() { return std::exchange(lost_, {}); }

 private:
  void check_torch();

  const RankPrograms& programs_;
  WorkerPool& pool_;
  template <class Ask>
  auto unless_lost(const Ask&);

  bool torch_is_checked_ = false;
  std::string lost_;
};

// Gives a diagnosis, or anybody who wants to know more of a case, its simulators and ranks.
class CaseMachine : public Machine {
 public:
  CaseMachine(CaseWorkers& workers, const Case& c, const Program& program)
      : workers_(workers), case_(c), program_(program) {}

  Simulation simulate(const SimulateRequest&) override;
  std::optional<DistributedRun> observe() override;
  std::optional<DistributedRun> run(const Program&, const std::vector<double>& weights) override;
  std::optional<DistributedRun> drive(const Program&, const Drive&) override;

 private:
  CaseWorkers& workers_;
  const Case& case_;
  const Program& program_;
};

}  // namespace distgrad
