// Decides when an observed value counts as the wanted one, and how far apart two tensors are. NaN
// equals NaN, an infinity equals itself, -0 equals 0; everything else must lie within an absolute
// bound by element. A bound of 0 or NaN asks for the same value, and an infinite one accepts
// anything, since the rounding error may have any size there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "model/dtype.h"

namespace distgrad {

// Returns half the distance from 1 to the next value: the largest relative error of one rounding.
double unit_roundoff(DType);

// Rounds to the nearest value of the dtype, ties to even, and to infinity beyond the largest one.
double rounded_to(DType, double value);

struct Difference {
  bool equal = true;
  std::int64_t first = -1;   // row-major element of the first difference; -1: none
  double max_abs_error = 0;  // over all elements, equal ones included
  // Holds the error relative to the wanted value; where that is 0 only elements that differ count.
  double max_rel_error = 0;
  // Holds the bound at the element with the largest error, among those that differ if any do. If
  // every element is exactly the wanted one, it is the largest bound.
  double bound = 0;

  // Joins a later tensor's difference: its first difference counts only if this one has none.
  void add(const Difference& other);

 private:
  template <class BoundAt>
  friend Difference difference(std::span<const double>, std::span<const double>, const BoundAt&);

  void add_element(std::int64_t element, double observed, double wanted, double bound_here);

  double worst_error_ = -1;
  double largest_bound_ = 0;
};

// Compares two spans of the same length. `bound_at(i)` is the bound of element i.
template <class BoundAt>
Difference difference(std::span<const double> observed, std::span<const double> wanted,
                      const BoundAt& bound_at) {
  Difference result;
  const std::size_t n = wanted.size();
  for (std::size_t i = 0; i < n; ++i) {
    const double bound = bound_at(i);
    // Usually the element is exactly right. NaN, and infinity minus itself, take the long way.
    if (observed[i] - wanted[i] == 0) {
      result.largest_bound_ = std::max(result.largest_bound_, bound);
    } else {
      result.add_element(static_cast<std::int64_t>(i), observed[i], wanted[i], bound);
    }
  }
  if (result.worst_error_ < 0) result.bound = result.largest_bound_;
  return result;
}

// Returns true if both are the same memory, so that no bound tells them apart.
inline bool is_same_memory(std::span<const double> a, std::span<const double> b) {
  return a.data() == b.data() && a.size() == b.size();
}

bool within(double observed, double wanted, double bound);

// Asks for the wanted value of every element.
inline double no_slack(std::size_t) { return 0; }

// Returns the largest finite absolute value, or 0 if there is none.
double largest_magnitude(std::span<const double> values);

}  // namespace distgrad
