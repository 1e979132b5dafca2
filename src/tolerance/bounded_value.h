// A value of the simulation with a bound of how far the run's value may lie off, and arithmetic on
// such pairs (running error analysis: Higham, Accuracy and Stability of Numerical Algorithms,
// section 3.3). An operation is free where the run computes exactly what the simulation computes;
// that is found out with error-free transformations.
#pragma once

#include "tolerance/precision.h"

namespace distgrad::tolerance {

struct BoundedValue {
  double value = 0;
  double error = 0;  // 0: the run has the same bits

  bool exact() const { return error == 0; }
};

// The arithmetic that the operators below compute in, as a kernel does inside: Arithmetic::inner.
// Set by a rule for as long as it lives; one thread.
class InArithmetic {
 public:
  explicit InArithmetic(const Arithmetic& arithmetic);
  ~InArithmetic();
  InArithmetic(const InArithmetic&) = delete;
  InArithmetic& operator=(const InArithmetic&) = delete;

 private:
  const Arithmetic* outer_;
};
const Arithmetic& current_arithmetic();

BoundedValue operator+(BoundedValue a, BoundedValue b);
BoundedValue operator-(BoundedValue a, BoundedValue b);
BoundedValue operator-(BoundedValue a);
BoundedValue operator*(BoundedValue a, BoundedValue b);
BoundedValue operator/(BoundedValue a, BoundedValue b);
BoundedValue square_root(BoundedValue x, double ulps = 1);
inline BoundedValue constant(double value) { return {value, 0}; }
// A constant that is written in a kernel and rounded to its type (1/sqrt(2), 2/sqrt(pi)).
BoundedValue rounded_constant(double value);

// A function that torch's kernels and ours compute to within `ulps`: rounding added to the given
// propagated error.
BoundedValue computed(double value, double propagated_error, double ulps);

bool is_power_of_two(double value);

// Of exp, exp2 and expm1, ours and torch's.
inline constexpr double kExpUlps = 2;

// Below this the residual of a product or a quotient may itself underflow in double.
inline constexpr double kResidualUnderflow = 0x1p-960;

// f monotone: what x's error does is seen at the ends of its interval.
BoundedValue monotone(double (*f)(double), BoundedValue x, double ulps);
// |f'| <= slope on the interval.
BoundedValue with_slope(double value, double slope, BoundedValue x, double ulps);

// The same value as `result`, known to be one of the exact results of the function (exp(0) = 1).
BoundedValue exactly(double value);

// To the stored type, where that is narrower than what the kernel computes in; out: what the
// simulation got.
double stored_error(BoundedValue result, double out);

}  // namespace distgrad::tolerance
