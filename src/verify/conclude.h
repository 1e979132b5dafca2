// Goes from the truth and a run of a case to its result: compares, asks for what that leaves open,
// diagnoses, judges.
#pragma once

#include "model/report.h"
#include "model/scenario.h"
#include "verify/case_workers.h"
#include "verify/shared_truth.h"
#include "verify/verify.h"

namespace distgrad {

// `truth` must be of a valid program; what is asked for again replaces it. `run` is null if the
// simulation is judged alone. The listener gets the truth and the conclusion. Throws Interrupted.
CaseResult conclude(const Case&, SharedTruth& truth, const DistributedRun* run,
                    const VerifyOptions&, CaseWorkers&, VerifyListener&);

// Puts a golden file's values in place of the simulation's if the options have any. Returns why
// that is impossible, or "".
std::string replace_truth(SharedTruth&, const Case&, const VerifyOptions&);

}  // namespace distgrad
