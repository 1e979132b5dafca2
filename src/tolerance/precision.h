// Describes the floating-point formats of a case, and what one rounding costs in them.
#pragma once

#include <c10/core/ScalarType.h>

#include <limits>

#include "model/dtype.h"

namespace distgrad::tolerance {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Describes a binary floating-point format. Values of every format are held as double.
struct Format {
  int significand_bits;
  int min_exponent;      // the smallest positive subnormal is 2^min_exponent
  double unit_roundoff;  // 2^-significand_bits: the relative error of one rounding to nearest
  double largest;        // finite
  double smallest;       // positive subnormal
  double smallest_normal;
};

const Format& format_of(DType dtype);

// Returns true if the format holds the value unchanged, as all hold infinities and NaN.
bool fits(const Format& format, double value);

// Returns the exponent of the lowest bit in use: value is an odd multiple of 2^lowest_bit. Zero has
// kNoBit.
inline constexpr int kNoBit = 1 << 14;
int lowest_bit(double value);
int significant_bits(double value);  // from the highest to the lowest in use; 0 for zero

// Says what operators that write one floating-point type cost, in the run and in the simulation
// together.
struct Arithmetic {
  Format stored;     // the type that the run's tensors have
  Format inner;      // what kernels compute in: float32 for the 16-bit types (torch's opmath_t)
  double simulated;  // unit roundoff of the simulation's own type

  bool narrows() const { return inner.significand_bits != stored.significand_bits; }

  // Bounds |run - simulation| added by one operation whose exact result is at most `magnitude`, if
  // both sides are accurate to `ulps` units in the last place (0.5: correctly rounded).
  double inner_rounding(double magnitude, double ulps = 0.5) const;
  // Does the same for rounding to the stored type, to nearest.
  double stored_rounding(double magnitude) const;
  // Returns gamma_n = n u / (1 - n u), for n roundings in a row (Higham, Accuracy and Stability,
  // lemma 3.1) of run and simulation.
  double inner_gamma(double n) const;
  double stored_gamma(double n) const;
};

// Adds ulps if the run's functions (exp, tanh, pow, ...) are CUDA's. NVIDIA's "CUDA C++ Programming
// Guide" 13.0, section 17.1, tables 17 (single) and 18 (double) give their errors in ulps from the
// correctly rounded result, which is half an ulp from the true one. For two functions they exceed
// those of any CPU library: 4 for acoshf, 5 for double erfc. So each gets this much more than
// docs/tolerance.md's table has; a test holds them to NVIDIA's tables. Holds for all that follows
// on this thread.
inline constexpr double kMoreUlpsOnGpu = 1.5;
void compute_functions_on_gpu(bool on_gpu);

// `simulated` is the type of the simulation's tensor; float64 there stands for the case's dtype.
const Arithmetic& arithmetic_for(DType dtype, c10::ScalarType simulated);

}  // namespace distgrad::tolerance
