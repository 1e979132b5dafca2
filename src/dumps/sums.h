// Checks whether what the ranks hold are shares whose sum is the gradient.
#pragma once

#include <optional>
#include <string>

#include "dumps/measured.h"

namespace distgrad::dumps {

struct MissingSum {
  std::string axis;    // "tp", "the ranks"; if several fit: "dp or tp"
  std::string over;    // "tp (ranks 0, 1; ranks 2, 3)"
  NamedFactor factor;  // of the sum relative to the reference
  bool is_mean = false;
  bool own_slices = false;  // each rank's share is zero where another's is not

  std::string text() const;  // Returns "needs a sum over tp (ranks 0, 1; ranks 2, 3)".
};

// Tries an axis, several, a process group, all ranks, and any sets of up to 10 ranks. The sum
// itself comes before the mean, and both before a multiple of the reference.
std::optional<MissingSum> missing_sum(const Measured&, const std::vector<Mistake>&,
                                      const FactorNames&);

}  // namespace distgrad::dumps
