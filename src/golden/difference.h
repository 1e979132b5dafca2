// Compares a stored golden file with what the simulation gives now.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "golden/golden_file.h"

namespace distgrad::golden {

// Names a stored value that does not lie within its bound of the present one.
struct ValueDifference {
  std::string where;        // the case, as case_text() spells it
  std::string tensor;       // the input's name, or "loss"
  std::string what;         // "l1" or "element 3" of a summarised tensor; else empty
  std::optional<int> rank;  // absent where all ranks share the tensor
  std::vector<std::int64_t> index;
  double stored = 0;
  double now = 0;
};

struct Differences {
  std::vector<std::string> notes;  // other differences, a sentence each
  std::vector<ValueDifference> values;

  bool empty() const { return notes.empty() && values.empty(); }
};

// Returns how many float64 steps apart a and b are; nothing where one of them is not finite.
std::optional<std::uint64_t> ulps_between(double a, double b);

// Returns whether a recorded bound would let wrong values pass that the present one does not.
bool is_too_wide(double stored, double now);

// Returns how far a stored float64 truth may lie from the present one, given the recorded bound of
// the dtype. It is 0 where the bound is 0.
double slack_of(double bound, DType dtype);

// Returns what `update` writes: `now`, but with every stored value and bound that still holds.
// `differences` receives those that do not hold.
GoldenFile kept(const GoldenFile& stored, const GoldenFile& now, Differences& differences);

}  // namespace distgrad::golden
