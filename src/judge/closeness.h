// When an observed value counts as the wanted one, and how far apart two tensors are. NaN equals
// NaN, an infinity equals itself, -0 equals 0; all else is within an absolute bound by element. A
// bound of 0 asks for the same value, an infinite one accepts anything (the rounding error may be
// of any size there), and a NaN is no bound and asks for the same value.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "model/dtype.h"

namespace distgrad {

// Half the distance from 1 to the next value: the largest relative error of one rounding.
double unit_roundoff(DType);

// To the nearest value of the dtype, ties to even; beyond the largest one infinite.
double rounded_to(DType, double value);

struct Difference {
  bool equal = true;
  std::int64_t first = -1;   // row-major element of the first difference; -1: none
  double max_abs_error = 0;  // over all elements, equal ones included
  double max_rel_error =
      0;  // against the wanted value; where that is 0 only if the element differs
  // At the element with the largest error, among those that differ where some do; the largest bound
  // where every element is exactly what is wanted.
  double bound = 0;

  // `other` comes after this one: its first difference counts only where this has none.
  void add(const Difference& other);

 private:
  template <class BoundAt>
  friend Difference difference(std::span<const double>, std::span<const double>, const BoundAt&);

  void add_element(std::int64_t element, double observed, double wanted, double bound_here);

  double worst_error_ = -1;
  double largest_bound_ = 0;
};

// `bound_at(i)` is the bound of element i. Both spans have the same length.
template <class BoundAt>
Difference difference(std::span<const double> observed, std::span<const double> wanted,
                      const BoundAt& bound_at) {
  Difference result;
  const std::size_t n = wanted.size();
  for (std::size_t i = 0; i < n; ++i) {
    const double bound = bound_at(i);
    // The usual element is exactly right. NaN, and infinity minus itself, take the long way.
    if (observed[i] - wanted[i] == 0) {
      result.largest_bound_ = std::max(result.largest_bound_, bound);
    } else {
      result.add_element(static_cast<std::int64_t>(i), observed[i], wanted[i], bound);
    }
  }
  if (result.worst_error_ < 0) result.bound = result.largest_bound_;
  return result;
}

// One memory: the very same elements, which no bound tells apart.
inline bool is_same_memory(std::span<const double> a, std::span<const double> b) {
  return a.data() == b.data() && a.size() == b.size();
}

bool within(double observed, double wanted, double bound);

// No bound: every element must be the wanted one.
inline double no_slack(std::size_t) { return 0; }

// The largest finite absolute value; 0 where there is none.
double largest_magnitude(std::span<const double> values);

}  // namespace distgrad
