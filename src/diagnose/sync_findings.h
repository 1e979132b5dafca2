// What is told where the gradients are wrong by what comes after backward: of ranks that did
// something else than the program's `sync`, and of a file whose `sync` is not what gives the truth.
#pragma once

#include <optional>
#include <vector>

#include "diagnose/replayer.h"
#include "diagnose/scaling.h"

namespace distgrad {

// One for each mistake of the hypothesis that is on inputs; those that share one are told together.
std::vector<Finding> sync_findings(const Evidence&, const Hypothesis&,
                                   const std::optional<Scaling>&);

// Where every backward is the adjoint: the changes of one input's `sync` (the other reduction, the
// other axis, none at all) with which its gradient would be the truth, and what was wrong without.
std::vector<Finding> file_sync_findings(const Evidence&, const Replayer&,
                                        const std::optional<Scaling>&);

}  // namespace distgrad
