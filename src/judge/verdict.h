// Decides what became of one case, and whether its file expects that.
#pragma once

#include <vector>

#include "model/comparison.h"
#include "model/report.h"
#include "model/run_result.h"

namespace distgrad {

// Holds what the stages found out about one case. A pointer is null if its stage did not happen;
// without a run the simulation is judged alone (--simulate).
struct Outcome {
  const Simulation* simulation = nullptr;
  const Program* program = nullptr;
  const DistributedRun* run = nullptr;
  const CaseComparison* comparison = nullptr;  // null: the run failed or was skipped
  std::vector<Finding> findings;
  std::string dispute;  // why gradients that differ blame nobody; empty: they blame the subject
  double elapsed_s = 0;
};

// Returns true if every rank came back with gradients, so that there is something to compare.
bool is_complete(const DistributedRun&);

// With `strict`, a skipped, disputed or vacuous case that the file does not expect is unexpected.
CaseResult judge(const Case&, Outcome, bool strict);

// Makes the result of a case that cannot be run, or not with an override, because of `why`.
CaseResult skipped(const Case&, std::string why, bool strict);

// Makes the result of a case that broke before its ranks could answer (no simulator, no backend).
CaseResult failed(const Case&, RankError error, double elapsed_s);

}  // namespace distgrad
