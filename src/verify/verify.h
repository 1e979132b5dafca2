// Takes every case through the pipeline: simulate, run on real ranks, compare, diagnose, judge.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "judge/machine.h"
#include "model/comparison.h"
#include "model/report.h"
#include "model/scenario.h"
#include "verify/interpreters.h"

namespace distgrad {

struct VerifyOptions {
  bool simulate_only = false;  // no ranks
  bool strict = false;         // unexpected skips and disputes are not as expected
  bool fail_fast = false;      // stops after the first case that is broken or not as expected
  int jobs = 1;                // most teams of ranks that work side by side
  Interpreters* interpreters = nullptr;  // needed if subjects are in Python
  // Asks for the truth of every case under every objective, for reports that tell of matches; else
  // only of cases that are not as expected, or not expected to match.
  bool every_objective = true;
  bool bounds_for_all = false;               // of every program, however large
  bool with_differences = false;             // also checks the gradients by finite differences
  std::vector<std::string> mesh_order = {};  // over a launcher's ranks; pool/worker_pool.h
  // Puts other values (a golden file's) in place of the simulation's before anything is compared
  // with them. If it returns why it cannot, the case is skipped, which is not as expected.
  std::function<std::string(const Case&, const Program&, Simulation&)> replace_truth = {};
};

// Holds what a result was made from, for a listener that tells more than the result does. It is
// valid during the call only.
struct Conclusion {
  const Case& which;
  const SimulateRequest& asked;
  const Simulation& simulation;
  const DistributedRun* run;         // null: simulated only
  const CaseComparison* comparison;  // null: the run failed or was skipped
  Machine& machine;                  // answers at once, before all that waits
  const CaseResult& result;          // as on_result() will have it
};

// Gets results as they come, from the thread that called verify().
class VerifyListener {
 public:
  virtual ~VerifyListener() = default;
  virtual void on_result(CaseResult) = 0;  // in the order of the cases
  // Is called once for each place of a program that means nothing, and once for a subject that
  // cannot be loaded.
  virtual void on_invalid(InvalidFile) = 0;
  // Is called before the result if the case could be simulated.
  virtual void on_conclusion(const Conclusion&) {}
  virtual void on_progress(std::size_t done, std::size_t failed) = 0;
  // Is called now and then while ranks import a subject.
  virtual void on_loading(const std::string&, double) {}  // subject, seconds
  // Is called with simulate_only, before the case's on_result() and in any order: the truth, and
  // what guards it.
  virtual void on_truth(const Case&, const Program&, const Simulation&, const CaseComparison&) {}
};

// Keeps simulators and ranks from one batch of cases to the next.
class Verifier {
 public:
  // `all` must have every case that will come, so that their interpreters are known.
  Verifier(std::span<const Case> all, const VerifyOptions& options);
  ~Verifier();
  Verifier(const Verifier&) = delete;
  Verifier& operator=(const Verifier&) = delete;

  // Returns when all cases are done, or the process was interrupted (interrupted_by()). Throws
  // SystemError if cases cannot be worked on at all.
  void verify(std::span<const Case> cases, VerifyListener& listener);

 private:
  struct Machinery;
  VerifyOptions options_;
  VerifyListener* listener_ = nullptr;  // during verify()
  std::unique_ptr<Machinery> machinery_;
};

// Verifies one batch.
void verify(std::span<const Case> cases, const VerifyOptions& options, VerifyListener& listener);

}  // namespace distgrad
