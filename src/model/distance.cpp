#include "model/distance.h"

#include <algorithm>

namespace distgrad {

bool same_values(const Array& a, const Array& b) {
  return a.shape() == b.shape() &&
         std::equal(a.values().begin(), a.values().end(), b.values().begin(), same_value);
}

Furthest furthest_apart(const Array& a, const Array& b) {
  Furthest furthest;
  for (std::int64_t i = 0; i < a.size(); ++i)
    if (const double d = distance(a[i], b[i]); d > furthest.distance) furthest = {i, d};
  return furthest;
}

}  // namespace distgrad
