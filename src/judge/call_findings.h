// What is reported of a collective call that did not give its operand what is right: its backward
// measured, named where a name fits, and written as a formula in any case.
#pragma once

#include <vector>

#include "judge/call_on_ranks.h"
#include "judge/evidence.h"
#include "judge/scaling.h"

namespace distgrad {

// `others`: all calls of the run, among which one may share a buffer with this one.
std::vector<Finding> call_findings(Machine&, const Evidence&, const CallOnRanks& call,
                                   const CallJudgement&, const std::vector<CallOnRanks>& others,
                                   const std::optional<Scaling>&);

// The backward of one call of the program, whether it is right or not. Nothing where the run fails,
// or it cannot be measured.
struct MeasuredCall {
  bool is_right = false;
  Measured measured;
};
std::optional<MeasuredCall> measured_call(Machine&, const Program&, const std::string& step);

}  // namespace distgrad
