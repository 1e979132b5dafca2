// Converts the position of an element in a row-major tensor to its index along each dim.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/array.h"

namespace distgrad {

// Converts a rank or a dim to the index of a list that is ordered by it.
inline std::size_t to_index(int rank_or_dim) { return static_cast<std::size_t>(rank_or_dim); }

inline std::vector<std::int64_t> index_of(const Shape& shape, std::int64_t element) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t dim = shape.size(); dim-- > 0; element /= shape[dim])
    index[dim] = element % shape[dim];
  return index;
}

}  // namespace distgrad
