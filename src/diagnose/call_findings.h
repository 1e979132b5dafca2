// What is reported of a collective call that did not give its operand what is right: its backward
// measured, named where a name fits, and written as a formula in any case.
#pragma once

#include <vector>

#include "diagnose/call_on_ranks.h"
#include "diagnose/evidence.h"
#include "diagnose/scaling.h"

namespace distgrad {

// `others`: all calls of the run, among which one may share a buffer with this one.
std::vector<Finding> call_findings(Machine&, const Evidence&, const CallOnRanks& call,
                                   const Judgement&, const std::vector<CallOnRanks>& others,
                                   const std::optional<Scaling>&);

}  // namespace distgrad
