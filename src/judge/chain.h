// What lies between the collective calls in backward: whether the cotangents that arrived at each
// call, and the gradients that the leaves got, follow by the chain rule from what the calls gave.
// Where every call is right and they do not, something else wrote to them.
#pragma once

#include <vector>

#include "judge/call_on_ranks.h"
#include "judge/evidence.h"

namespace distgrad {

// The program with every call taken out: its output is an input that wants a gradient, under the
// step's name, and what its backward gave to its operand enters as a term of the loss. Under the
// objective "sum" its gradients are the ranks' own, before any `sync`.
Program without_calls(const Program&, const std::vector<double>& weights,
                      const std::vector<CallOnRanks>&, const DistributedRun& observed);

// Places where what was observed does not follow: as it is named by a finding. Empty: everywhere,
// or it cannot be told.
std::vector<Finding> chain_findings(Machine&, const Evidence&, const std::vector<CallOnRanks>&,
                                    const DistributedRun& observed);

}  // namespace distgrad
