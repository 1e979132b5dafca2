// A stored golden file beside what the simulation gives now.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "golden/golden_file.h"

namespace distgrad::golden {

// A stored value that does not lie within its bound of the present one.
struct ValueDifference {
  std::string where;        // the case
  std::string tensor;       // the input, or "loss"
  std::string what;         // of a summarised tensor "l1", "element 3"; else empty
  std::optional<int> rank;  // absent: a tensor of all ranks
  std::vector<std::int64_t> index;
  double stored = 0;
  double now = 0;
};

struct Differences {
  std::vector<std::string> notes;  // what else differs, a sentence each
  std::vector<ValueDifference> values;

  bool empty() const { return notes.empty() && values.empty(); }
};

// float64 values from a to b, each counted; absent where one of them is not finite.
std::optional<std::uint64_t> ulps_between(double a, double b);

// How far a stored float64 truth may lie from the present one, given the recorded bound of the
// dtype: 0 where that is 0.
double slack_of(double bound, DType dtype);

// What `update` writes: `now`, with every stored value and bound in it that still holds. What does
// not hold is in `differences`.
GoldenFile kept(const GoldenFile& stored, const GoldenFile& now, Differences& differences);

}  // namespace distgrad::golden
