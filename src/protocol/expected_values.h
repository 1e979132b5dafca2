// Holds what a rank's tensors probably are: the simulation's, in the shared memory that they came
// in. A rank whose tensors have the same bits says so and does not send them, so the driver neither
// holds nor reads them a second time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/unique_fd.h"
#include "model/array.h"

namespace distgrad {

// Holds the sealed tensor data of one message, which others can be given.
struct SharedPayload {
  std::shared_ptr<const UniqueFd> fd;
  std::span<const double> values;
  std::shared_ptr<const void> keeper;  // of the values

  bool holds(const Array& array) const {
    const double* first = array.values().data();
    const std::less_equal<const double*> not_after;
    return array.size() > 0 && not_after(values.data(), first) &&
           not_after(first + array.size(), values.data() + values.size());
  }
  // Returns the number of elements before an array that it holds.
  std::size_t place_of(const Array& array) const {
    return static_cast<std::size_t>(array.values().data() - values.data());
  }
};

struct ExpectedValues {
  // Holds tensors by rank; empty, or absent, where nothing is expected.
  using ByRank = std::vector<std::optional<Array>>;

  SharedPayload payload;          // holds all of them
  std::vector<ByRank> gradients;  // of the inputs that require grad
  std::vector<ByRank> steps;      // of the reported steps
};

// Returns this rank's expected array of `values[which]` if `own` has the same bits, else `own`.
// Releases the pages of the expected one that it has read.
Array expected_or(Array own, const std::vector<ExpectedValues::ByRank>& values, std::size_t which,
                  int rank);

}  // namespace distgrad
