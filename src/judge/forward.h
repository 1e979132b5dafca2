// Forward values and the guards of the simulation: what must agree besides the gradients.
#pragma once

#include <optional>

#include "model/comparison.h"
#include "model/run_result.h"
#include "model/scenario.h"

namespace distgrad {

// The first collective step, in program order, whose value differs on some rank; else the loss.
std::optional<ForwardDifference> forward_difference(const Tolerance&, const Program&,
                                                    const Simulation&, const DistributedRun&);

// The file's own truth against the simulation's, within the derived bounds. Figures are decimal
// text: one counts as equal, too, if the dtype's nearest value to it does; a closed form may cost a
// few roundings of its own. What an override made inapplicable is not compared.
std::optional<GuardDifference> truth_difference(const Case&, const Program&, const Simulation&);

// The one-device program's loss against the objective J, and its gradients against the truth. Both
// are float64, so the bounds count as scaled to float64, whatever the case's dtype.
// `weights`: of J.
std::optional<GuardDifference> program_difference(const Program&,
                                                  const std::vector<double>& weights,
                                                  const Simulation&);

}  // namespace distgrad
