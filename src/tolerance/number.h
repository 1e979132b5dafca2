// A value of the simulation with a bound of how far the run's value may lie off, and arithmetic on such pairs (running
// error analysis: Higham, Accuracy and Stability of Numerical Algorithms, section 3.3). An operation is free where the
// run computes exactly what the simulation computes; that is found out with error-free transformations.
#pragma once

#include "tolerance/precision.h"

namespace distgrad::tolerance {

struct Number {
  double value = 0;
  double error = 0;  // 0: the run has the same bits

  bool exact() const { return error == 0; }
};

// The arithmetic that the operators below compute in, as a kernel does inside: Arithmetic::inner. Set by a rule for
// as long as it lives; one thread.
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

Number operator+(Number a, Number b);
Number operator-(Number a, Number b);
Number operator-(Number a);
Number operator*(Number a, Number b);
Number operator/(Number a, Number b);
Number square_root(Number x, double ulps = 1);
inline Number constant(double value) { return {value, 0}; }
// A constant that is written in a kernel and rounded to its type (1/sqrt(2), 2/sqrt(pi)).
Number rounded_constant(double value);

// A function that torch's kernels and ours compute to within `ulps`: rounding added to the given propagated error.
Number computed(double value, double propagated_error, double ulps);

// f monotone: what x's error does is seen at the ends of its interval.
Number monotone(double (*f)(double), Number x, double ulps);
// |f'| <= slope on the interval.
Number with_slope(double value, double slope, Number x, double ulps);

// The same value as `result`, known to be one of the exact results of the function (exp(0) = 1).
Number exactly(double value);

// To the stored type, where that is narrower than what the kernel computes in; out: what the simulation got.
double stored_error(Number result, double out);

}  // namespace distgrad::tolerance
