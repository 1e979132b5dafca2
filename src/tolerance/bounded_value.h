// Pairs a value of the simulation with a bound of how far the run's value may lie off, and does
// arithmetic on such pairs (running error analysis: Higham, Accuracy and Stability of Numerical
// Algorithms, section 3.3). An operation costs nothing if the run computes exactly what the
// simulation computes, which error-free transformations find out.
#pragma once

#include "tolerance/precision.h"

namespace distgrad::tolerance {

struct BoundedValue {
  double value = 0;
  double error = 0;  // 0: the run has the same bits

  bool exact() const { return error == 0; }
};

// Sets the arithmetic that the operators below compute in, as a kernel does inside:
// Arithmetic::inner. A rule sets it, for its own life, on its own thread.
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
// Returns a constant that is written in a kernel and rounded to its type (1/sqrt(2), 2/sqrt(pi)).
BoundedValue rounded_constant(double value);

// Bounds a function that torch's kernels and ours compute to within `ulps`: it adds the rounding to
// the propagated error.
BoundedValue computed(double value, double propagated_error, double ulps);

bool is_power_of_two(double value);

// Gives the accuracy of exp, exp2 and expm1, ours and torch's.
inline constexpr double kExpUlps = 2;

// Below this the residual of a product or a quotient may itself underflow in double.
inline constexpr double kResidualUnderflow = 0x1p-960;

// Bounds a monotone f, for which the ends of x's interval show what x's error does.
BoundedValue monotone(double (*f)(double), BoundedValue x, double ulps);
// Bounds a function with |f'| <= slope on the interval.
BoundedValue with_slope(double value, double slope, BoundedValue x, double ulps);

// Returns `value` as one of the exact results of a function (exp(0) = 1).
BoundedValue exactly(double value);

// Returns the error after rounding to the stored type, if that is narrower than what the kernel
// computes in. `out` is the simulation's result.
double stored_error(BoundedValue result, double out);

}  // namespace distgrad::tolerance
