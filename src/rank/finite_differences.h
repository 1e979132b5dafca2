// Central finite differences of a function of one variable beside its derivative as somebody
// computed it: the guard of the simulation's own gradients, which knows nothing of autograd. It
// accuses only where it can be sure.
#pragma once

#include <functional>

#include "model/run_result.h"

namespace distgrad {

// `along(t)`: the objective J at x + t·d, for some direction d as large as x. `derivative`: Σ_i g_i
// d_i. `scale`: Σ_i |g_i d_i|, which says how much of it may have cancelled. Calls `along` five
// times, |t| <= 2^-16.
FiniteDifferences finite_differences(const std::function<double(double)>& along, double derivative,
                                     double scale);

}  // namespace distgrad
