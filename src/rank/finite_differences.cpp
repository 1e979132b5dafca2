#include "rank/finite_differences.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace distgrad {
namespace {

// The step is about the cube root of float64's epsilon, where truncation (h²) and rounding (epsilon
// / h) weigh the same.
constexpr double kStep = 0x1p-17;
// Bounds, relative to J, what its evaluation may lose by rounding, even in thousands of additions
// that cancel.
constexpr double kRounding = 4096 * std::numeric_limits<double>::epsilon();
// A right derivative is this close, relative to the scale; a wrong formula is off by far more.
constexpr double kClose = 1e-6;
// Limits their difference relative to the scale. If slopes over one step and over two differ by
// more, nothing can be said of the derivative.
constexpr double kRough = 1e-3;

}  // namespace

FiniteDifferences finite_differences(const std::function<double(double)>& along, double derivative,
                                     double scale) {
  const double here = along(0);
  const double ahead = along(kStep), behind = along(-kStep), far_ahead = along(2 * kStep),
               far_behind = along(-2 * kStep);
  const double near = (ahead - behind) / (2 * kStep), far = (far_ahead - far_behind) / (4 * kStep);
  const double slope = (4 * near - far) / 3;  // Richardson: the error is of order h⁴
  // The bends measure how much the slope changes here, from two distances. Where J is smooth, half
  // the distance gives half the bend. At a kink it cannot be seen which direction autograd has
  // taken.
  const double bend = (ahead - 2 * here + behind) / kStep,
               far_bend = (far_ahead - 2 * here + far_behind) / (2 * kStep);
  const double kink = std::abs(2 * bend - far_bend);

  FiniteDifferences result;
  result.numeric = slope;
  result.derivative = derivative;
  if (!std::isfinite(slope) || !std::isfinite(derivative) || !std::isfinite(scale)) return result;
  const double largest = std::max({std::abs(here), std::abs(ahead), std::abs(behind)});
  const double noise = kRounding * largest / kStep;
  const double size = std::max(scale, std::abs(slope));
  const double rough = std::abs(near - far);
  if (std::abs(slope - derivative) <= kClose * size + noise + 10 * rough)
    result.answer = FiniteDifferences::Answer::kAgree;
  else if (kink <= kClose * size + noise && rough <= kRough * size + noise)
    result.answer = FiniteDifferences::Answer::kDisagree;
  return result;
}

}  // namespace distgrad
