#include "protocol/expected_values.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/memory_file.h"

namespace distgrad {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 18;  // elements: 2 MiB

// Compares bits, as the driver distinguishes -0 from 0, and NaNs, in what it shows.
bool same_bits(std::span<const double> own, std::span<const double> expected) {
  for (std::size_t at = 0; at < own.size(); at += kChunk) {
    const std::size_t count = std::min(kChunk, own.size() - at);
    const bool same = std::memcmp(&own[at], &expected[at], count * sizeof(double)) == 0;
    let_go(&expected[at], count * sizeof(double));
    if (!same) return false;
  }
  return true;
}

}  // namespace

Array expected_or(Array own, const std::vector<ExpectedValues::ByRank>& values, std::size_t which,
                  int rank) {
  const auto place = static_cast<std::size_t>(rank);
  if (which >= values.size() || place >= values[which].size() || !values[which][place]) return own;
  const Array& expected = *values[which][place];
  const bool same = expected.shape() == own.shape() && same_bits(own.values(), expected.values());
  return same ? expected : std::move(own);
}

}  // namespace distgrad
