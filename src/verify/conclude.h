// From the truth and a run of a case to its result: compare, ask for what that leaves open,
// diagnose, judge.
#pragma once

#include "model/report.h"
#include "model/scenario.h"
#include "verify/case_workers.h"
#include "verify/shared_truth.h"
#include "verify/verify.h"

namespace distgrad {

// `truth` was simulated and means something; it gets what was asked for again. `run` is null where
// the simulation is judged alone. The listener gets the truth and the conclusion. Throws
// Interrupted.
CaseResult conclude(const Case&, SharedTruth& truth, const DistributedRun* run,
                    const VerifyOptions&, CaseWorkers&, VerifyListener&);

// A golden file's values in place of the simulation's, where the options have any. Not empty: why
// they cannot be taken.
std::string replace_truth(SharedTruth&, const Case&, const VerifyOptions&);

}  // namespace distgrad
