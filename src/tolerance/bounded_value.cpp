#include "tolerance/bounded_value.h"

#include <algorithm>
#include <cmath>

namespace distgrad::tolerance {
namespace {

const Arithmetic* arithmetic = nullptr;

// Keeps infinities and NaN: they are the same in the run if everything before was exact, else
// anything.
BoundedValue checked(double value, double error) {
  if (!(error < kInfinity)) return {value, kInfinity};
  if (!std::isfinite(value)) return {value, error == 0 ? 0 : kInfinity};
  return {value, error};
}

BoundedValue rounded(double value, double propagated, bool exact) {
  if (exact && fits(arithmetic->inner, value)) return {value, 0};
  if (!std::isfinite(value)) return checked(value, propagated);
  return checked(value, propagated + arithmetic->inner_rounding(std::fabs(value) + propagated));
}

}  // namespace

bool is_power_of_two(double value) {
  int exponent = 0;
  return std::fabs(std::frexp(value, &exponent)) == 0.5;
}

InArithmetic::InArithmetic(const Arithmetic& a) : outer_(arithmetic) { arithmetic = &a; }
InArithmetic::~InArithmetic() { arithmetic = outer_; }
const Arithmetic& current_arithmetic() { return *arithmetic; }

BoundedValue operator+(BoundedValue a, BoundedValue b) {
  const double sum = a.value + b.value;
  const double from_b = sum - a.value;  // Knuth's two-sum: the rounding error of sum
  const double residual = (a.value - (sum - from_b)) + (b.value - from_b);
  return rounded(sum, a.error + b.error, a.exact() && b.exact() && residual == 0);
}

BoundedValue operator-(BoundedValue a) { return {-a.value, a.error}; }
BoundedValue operator-(BoundedValue a, BoundedValue b) { return a + -b; }

BoundedValue operator*(BoundedValue a, BoundedValue b) {
  const double product = a.value * b.value;
  if (a.exact() && b.exact()) {
    const bool exact =
        a.value == 0 || b.value == 0 ||
        (std::fabs(product) > kResidualUnderflow && std::fma(a.value, b.value, -product) == 0);
    return rounded(product, 0, exact);
  }
  if (!std::isfinite(product)) return {product, kInfinity};
  const double propagated =
      std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error;
  return rounded(product, propagated, false);
}

BoundedValue operator/(BoundedValue a, BoundedValue b) {
  const double quotient = a.value / b.value;
  if (a.exact() && b.exact()) {
    const bool exact =
        (a.value == 0 && b.value != 0) ||
        (std::fabs(a.value) > kResidualUnderflow && std::fabs(quotient) > kResidualUnderflow &&
         std::fma(-quotient, b.value, a.value) == 0);
    return rounded(quotient, 0, exact);
  }
  const double nearest_zero = std::fabs(b.value) - b.error;
  if (!(nearest_zero > 0) || !std::isfinite(quotient)) return {quotient, kInfinity};
  return rounded(quotient, (a.error + std::fabs(quotient) * b.error) / nearest_zero, false);
}

BoundedValue square_root(BoundedValue x, double ulps) {
  const double root = std::sqrt(x.value);
  if (x.exact()) {
    // The root is accurate to less than one ulp, so a representable one comes out as it is.
    const bool exact =
        x.value == 0 || (x.value > kResidualUnderflow && std::fma(-root, root, x.value) == 0);
    if (exact || !std::isfinite(root)) return rounded(root, 0, true);
    return computed(root, 0, ulps);
  }
  if (!(x.value - x.error >= 0)) return {root, kInfinity};
  return computed(
      root, std::max(std::sqrt(x.value + x.error) - root, root - std::sqrt(x.value - x.error)),
      ulps);
}

BoundedValue rounded_constant(double value) { return computed(value, 0, 0.5); }

BoundedValue computed(double value, double propagated_error, double ulps) {
  if (!std::isfinite(value)) return checked(value, propagated_error);
  return checked(value, propagated_error +
                            arithmetic->inner_rounding(std::fabs(value) + propagated_error, ulps));
}

BoundedValue monotone(double (*f)(double), BoundedValue x, double ulps) {
  const double value = f(x.value);
  if (x.exact()) return computed(value, 0, ulps);
  const double up = std::fabs(f(x.value + x.error) - value),
               down = std::fabs(f(x.value - x.error) - value);
  // NaN means that the interval leaves the function's domain. (std::max may drop a NaN.)
  return computed(value, std::isnan(up) || std::isnan(down) ? kInfinity : std::max(up, down), ulps);
}

BoundedValue with_slope(double value, double slope, BoundedValue x, double ulps) {
  return computed(value, x.exact() ? 0 : slope * x.error, ulps);
}

BoundedValue exactly(double value) { return {value, 0}; }

double stored_error(BoundedValue result, double out) {
  if (std::isnan(out)) return result.exact() && std::isnan(result.value) ? 0 : kInfinity;
  if (!std::isfinite(out)) return result.exact() && result.value == out ? 0 : kInfinity;
  const Arithmetic& a = *arithmetic;
  if (result.exact() && result.value == out && fits(a.stored, out)) return 0;
  double error = result.error + std::fabs(result.value - out);
  const double magnitude = std::fabs(out) + error;
  if (a.narrows()) {
    error += a.stored_rounding(magnitude);
  } else {
    if (result.exact()) error += a.stored_rounding(magnitude);
    if (!(magnitude <= a.stored.largest)) return kInfinity;
  }
  return error < kInfinity ? error : kInfinity;
}

}  // namespace distgrad::tolerance
