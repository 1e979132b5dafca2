// Checks whether what the ranks hold are shares whose sum is the gradient.
#pragma once

#include <optional>
#include <string>

#include "dumps/measured.h"

namespace distgrad::dumps {

struct MissingSum {
  std::string axis;        // "tp", "the ranks"; of several that fit: "dp or tp"
  std::string over;        // "tp (ranks 0, 1; ranks 2, 3)"
  NamedFactor factor;      // the sum's, of the reference
  std::vector<int> ranks;  // that are summed
  std::vector<int> right;  // the others: each is so by itself
  bool is_mean = false;
  bool own_slices = false;  // each rank's share is zero where another's is not

  std::string text() const;  // Returns "needs a sum over tp (ranks 0, 1; ranks 2, 3)".
};

// Over an axis, several, a process group, all ranks, or any sets of up to 10 ranks that are not
// right by themselves. The sum itself before the mean, and both before a multiple of the reference.
std::optional<MissingSum> missing_sum(const Measured&, const std::vector<Mistake>&,
                                      const FactorNames&);

}  // namespace distgrad::dumps
