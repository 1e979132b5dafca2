// What became of one case, and whether that is what its file expects.
#pragma once

#include <vector>

#include "model/comparison.h"
#include "model/report.h"
#include "model/run_result.h"

namespace distgrad {

// What the stages found out about one case. Absent where a stage did not come about: without a
// run the simulation is judged alone (--simulate).
struct Outcome {
  const Simulation* simulation = nullptr;
  const Program* program = nullptr;
  const DistributedRun* run = nullptr;
  const CaseComparison* comparison = nullptr;  // absent: the run failed or was skipped
  std::vector<Finding> findings;
  std::string dispute;  // why gradients that differ accuse nobody; empty: they do
  double elapsed_s = 0;
};

// Whether there is something to compare: every rank came back with gradients.
bool is_complete(const DistributedRun&);

// `strict`: skipped, disputed and vacuous cases that the file does not expect are not as expected.
CaseResult judge(const Case&, Outcome, bool strict);

// A case that cannot be run, or not with an override: `why` says the reason.
CaseResult skipped(const Case&, std::string why, bool strict);

// A case that broke before its ranks could say anything (no simulator, no backend).
CaseResult failed(const Case&, RankError error, double elapsed_s);

}  // namespace distgrad
