// Reports gradients that are wrong because of what comes after backward: ranks that did not do the
// program's `sync`, or a file whose `sync` does not give the truth.
#pragma once

#include <optional>
#include <vector>

#include "judge/evidence.h"
#include "judge/machine.h"
#include "judge/scaling.h"

namespace distgrad {

bool has_invariant_axis(const Input&);

// Reports ranks whose gradient is not what the program's `sync` makes of what backward gave them:
// the mistake that does it (judge/sync_mistakes.h), or that it is none of these. Inputs that share
// a mistake are reported together.
std::vector<Finding> sync_findings(const Evidence&, const DistributedRun& observed,
                                   const std::optional<Scaling>&);

// Explains wrong `invariant` inputs, for which backward itself owes the sum over the ranks, as by a
// copy whose backward is an all_reduce: which wrong sum of the ranks' shares they hold. The list is
// also empty if they are the shares themselves (arithmetic_findings.h reports that). Returns
// nothing if some wrong input is not invariant, or cannot be explained so.
std::optional<std::vector<Finding>> invariant_findings(Machine&, const Evidence&,
                                                       const std::optional<Scaling>&);

// Reports changes of the file when backward and sync did as they should: changes of one input's
// `sync` (the other reduction, the other axis, none at all) that would make its gradient the truth,
// and what was wrong without them.
std::vector<Finding> file_sync_findings(const Evidence&, const DistributedRun& observed,
                                        const std::optional<Scaling>&);

}  // namespace distgrad
