// Reports a collective call that did not give its operand the right gradient: it measures the
// backward, names the mistake if a name fits, and always gives the formula.
#pragma once

#include <vector>

#include "judge/call_on_ranks.h"
#include "judge/evidence.h"
#include "judge/scaling.h"

namespace distgrad {

// `others` has all calls of the run; one of them may share a buffer with this call.
std::vector<Finding> call_findings(Machine&, const Evidence&, const CallOnRanks& call,
                                   const CallJudgement&, const std::vector<CallOnRanks>& others,
                                   const std::optional<Scaling>&);

// Measures the backward of one call of the program, right or wrong. Returns nothing if the run
// fails or the call cannot be measured.
struct MeasuredCall {
  bool is_right = false;
  Measured measured;
};
std::optional<MeasuredCall> measured_call(Machine&, const Program&, const std::string& step);

}  // namespace distgrad
