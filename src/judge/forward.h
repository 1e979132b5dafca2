// Compares what must agree besides the gradients: forward values and the simulation's guards.
#pragma once

#include <optional>

#include "model/comparison.h"
#include "model/run_result.h"
#include "model/scenario.h"

namespace distgrad {

// Returns the first collective step in program order whose value differs on some rank, or the loss.
std::optional<ForwardDifference> forward_difference(const Tolerance&, const Program&,
                                                    const Simulation&, const DistributedRun&);

// Compares the file's own truth with the simulation's, within the derived bounds. A figure is
// decimal text, so it also counts as equal if the dtype's nearest value to it does. A closed form
// may cost a few roundings of its own. Figures that an override made inapplicable are not compared.
std::optional<GuardDifference> truth_difference(const Case&, const Program&, const Simulation&);

// Compares the one-device program's loss with the objective J, and its gradients with the truth.
// Both are float64, so the bounds are scaled to that, whatever the case's dtype. `weights` are J's.
std::optional<GuardDifference> program_difference(const Program&,
                                                  const std::vector<double>& weights,
                                                  const Simulation&);

}  // namespace distgrad
