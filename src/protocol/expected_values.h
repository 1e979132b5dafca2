// What a rank's tensors probably are: the simulation's, in the shared memory that they came in. A
// rank that has the same bits says so and does not send them: the driver then neither holds nor
// reads them a second time.
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

// The tensor data of one message, sealed, which others can be given.
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
  // Of one that it holds: after how many elements it begins.
  std::size_t place_of(const Array& array) const {
    return static_cast<std::size_t>(array.values().data() - values.data());
  }
};

struct ExpectedValues {
  // By rank; empty, or absent, where there is nothing to be expected.
  using ByRank = std::vector<std::optional<Array>>;

  SharedPayload payload;          // holds all of them
  std::vector<ByRank> gradients;  // of the inputs that require grad
  std::vector<ByRank> steps;      // of the steps that are reported
};

// The expected one of `values[which]` for this rank where `own` has its bits, else `own`. What was
// read of the expected one is let go again.
Array expected_or(Array own, const std::vector<ExpectedValues::ByRank>& values, std::size_t which,
                  int rank);

}  // namespace distgrad
