// Finds out whether the observed gradients are the truth times a constant.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "judge/evidence.h"
#include "judge/factor_names.h"

namespace distgrad {

// Says that every gradient that differs from the truth is a constant times it, on all ranks.
struct Scaling {
  std::vector<std::pair<std::size_t, double>> by_input;  // those that differ, as pairs of input and
                                                         // factor
  std::optional<double> common;                          // one factor for all of them
  bool all_inputs = true;                                // all other inputs have gradients of 0
};

// Returns nothing if some gradient that differs is no multiple of the truth or is missing, or if
// the truth is 0 everywhere. Elements whose truth is 0 must be 0 and show no factor. A factor
// within its error of one that has a name is taken for that; any other needs two elements.
std::optional<Scaling> scaling_of(const Evidence&);

// Names an exactly known factor in terms of this program's ranks and groups.
NamedFactor factor_of_exact(const Program&, double factor);

}  // namespace distgrad
