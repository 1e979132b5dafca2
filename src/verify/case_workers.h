// What is asked of simulators and ranks for a case, now or behind what waits.
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

// Thrown by whatever waits for an answer when the process was interrupted (interrupted_by()).
struct Interrupted {};

// A GPU's functions are less accurate: the same truth has wider bounds.
bool is_on_gpu(const Case&);

// The case's run as its file has it; `program` may be another than the case's own.
RunRequest run_request(const Case&, const Program& program);

class CaseWorkers {
 public:
  CaseWorkers(const RankPrograms& programs, WorkerPool& pool) : programs_(programs), pool_(pool) {}

  // Starts the case's ranks ahead of it.
  void prepare_for(const Case&);

  // The truth is a SimulationRun, or, where only the ranks can find it out, a DistributedRun for
  // measured().
  Ticket ask_truth(const SimulateRequest&, const Case&);
  Ticket ask_run(const RunRequest&, const Case&,
                 std::shared_ptr<const ExpectedValues> expected = {});
  // Nothing when nothing is outstanding, or when the process was interrupted. Throws SystemError
  // where the ranks' torch is not the one that this was built with.
  std::optional<Completion> next();

  // Before all that waits. Where it failed, `simulation.invalid` says so, too. Throws Interrupted.
  SimulationRun simulate_now(const SimulateRequest&, const Case&);
  // Behind the runs that wait already, as those are what the ranks have been handed. Throws
  // Interrupted.
  DistributedRun run_now(const RunRequest&, const Case&);

  // Why one of the above died twice since this was last asked for; empty: none did.
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

// A case's simulators and ranks, for a diagnosis or who else wants to know more of it.
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
