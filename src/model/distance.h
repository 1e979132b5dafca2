// Defines when two numbers or tensors are the same and how far apart they are. NaN equals NaN, and
// an infinity equals itself; everything else is infinitely far from them.
#pragma once

#include <cmath>
#include <limits>

#include "model/array.h"

namespace distgrad {

inline bool same_value(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

inline double distance(double a, double b) {
  if (same_value(a, b)) return 0;
  const double d = std::abs(a - b);
  return std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
}

// Returns true if shape and elements are the same.
bool same_values(const Array& a, const Array& b);

struct Furthest {
  std::int64_t element = 0;
  double distance = 0;  // 0: all are the same
};

// Returns the first of the elements that are furthest apart. Both tensors have the same shape.
Furthest furthest_apart(const Array& a, const Array& b);

}  // namespace distgrad
