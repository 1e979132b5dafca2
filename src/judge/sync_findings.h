// What is said where the gradients are wrong by what comes after backward: of ranks that did
// something else than the program's `sync`, and of a file whose `sync` is not what gives the truth.
#pragma once

#include <optional>
#include <vector>

#include "judge/evidence.h"
#include "judge/machine.h"
#include "judge/scaling.h"

namespace distgrad {

bool has_invariant_axis(const Input&);

// Where what the ranks hold is not what the program's `sync` makes of what backward gave them: the
// mistake that does it (judge/sync_mistakes.h), or that it is none of these. Inputs that share
// one are reported together.
std::vector<Finding> sync_findings(const Evidence&, const DistributedRun& observed,
                                   const std::optional<Scaling>&);

// Of an `invariant` input backward itself owes the sum over the ranks, as by a copy whose backward
// is an all_reduce: how what the ranks hold is made of their shares where that sum was made
// otherwise. Empty also where it was not made at all (arithmetic_findings.h tells of that). Nothing
// where an input that is wrong is no such one, or cannot be explained so.
std::optional<std::vector<Finding>> invariant_findings(Machine&, const Evidence&,
                                                       const std::optional<Scaling>&);

// Where backward and sync did as they should: the changes of one input's `sync` (the other
// reduction, the other axis, none at all) with which its gradient would be the truth, and what was
// wrong without.
std::vector<Finding> file_sync_findings(const Evidence&, const DistributedRun& observed,
                                        const std::optional<Scaling>&);

}  // namespace distgrad
