// Where an element of a row-major tensor stands: its index along each dim.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/array.h"

namespace distgrad {

// Of a rank or a dim, by which lists are in order.
inline std::size_t to_index(int rank_or_dim) { return static_cast<std::size_t>(rank_or_dim); }

inline std::vector<std::int64_t> index_of(const Shape& shape, std::int64_t element) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t dim = shape.size(); dim-- > 0; element /= shape[dim])
    index[dim] = element % shape[dim];
  return index;
}

}  // namespace distgrad
