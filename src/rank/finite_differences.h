// Compares central finite differences of a function of one variable with a derivative that somebody
// computed. It guards the simulation's own gradients, knows nothing of autograd, and accuses only
// where it can be sure.
#pragma once

#include <functional>

#include "model/run_result.h"

namespace distgrad {

// `along(t)` returns the objective J at x + t·d, for some direction d as large as x. `derivative`
// is Σ_i g_i d_i. `scale` is Σ_i |g_i d_i|, which shows how much of the derivative may have
// cancelled. Calls `along` five times, with |t| <= 2^-16.
FiniteDifferences finite_differences(const std::function<double(double)>& along, double derivative,
                                     double scale);

}  // namespace distgrad
