// Checks what lies between the collective calls in backward: whether the cotangents that arrived at
// each call, and the gradients of the leaves, follow by the chain rule from what the calls gave. If
// every call is right and they do not, something else wrote to them.
#pragma once

#include <vector>

#include "judge/call_on_ranks.h"
#include "judge/evidence.h"

namespace distgrad {

// Returns the program with every call taken out. A call's output becomes an input, under the step's
// name, that requires grad, and what the call's backward gave its operand becomes a term of the
// loss. Under the objective "sum" its gradients are the ranks' own, before any `sync`.
Program without_calls(const Program&, const std::vector<double>& weights,
                      const std::vector<CallOnRanks>&, const DistributedRun& observed);

// Reports the places where what was observed does not follow. An empty list means that all follows,
// or that it cannot be told.
std::vector<Finding> chain_findings(Machine&, const Evidence&, const std::vector<CallOnRanks>&,
                                    const DistributedRun& observed);

}  // namespace distgrad
