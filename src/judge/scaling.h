// Whether the observed gradients are the truth times a constant.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "judge/evidence.h"
#include "judge/factor_names.h"

namespace distgrad {

// Every gradient that differs from the truth is a constant times it, on all ranks.
struct Scaling {
  std::vector<std::pair<std::size_t, double>> by_input;  // those that differ: input, factor
  std::optional<double> common;                          // one factor for all of them
  bool all_inputs = true;  // no other input has a gradient that is not 0
};

// Nothing where some gradient that differs is no multiple of the truth, is missing, or the truth is
// 0 everywhere. Elements that are 0 in the truth must be 0 and say nothing of the factor. A factor
// within its error of one that has a name is taken for that; another one needs two elements to show
// it.
std::optional<Scaling> scaling_of(const Evidence&);

// What a factor that is known exactly is, of this program's ranks and groups.
NamedFactor factor_of_exact(const Program&, double factor);

}  // namespace distgrad
