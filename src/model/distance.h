// When two numbers, or two tensors, are the same, and how far apart they are. NaN equals NaN and an
// infinity itself; all else is infinitely far from them.
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

// Shape and elements.
bool same_values(const Array& a, const Array& b);

struct Furthest {
  std::int64_t element = 0;
  double distance = 0;  // 0: all are the same
};

// Of two tensors of one shape, the first of those that are furthest apart.
Furthest furthest_apart(const Array& a, const Array& b);

}  // namespace distgrad
