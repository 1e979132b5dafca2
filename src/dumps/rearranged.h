// Pieces that are made of the right numbers, and not of those that belong there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dumps/measured.h"

namespace distgrad::dumps {

// Each rank holds the sum of what ranks with other parts of the tensor should hold: it was reduced
// along an axis over which it is cut.
struct SummedParts {
  std::string axis;
  std::string text;
  NamedFactor factor;
};
// Of a parameter that holds such sums: the axis, and their factor. Few numbers may show it, too.
using ShownSum = std::pair<std::string, double>;
std::optional<SummedParts> summed_parts(const Measured&, const FactorNames&,
                                        const std::vector<ShownSum>& shown);

// Rows, columns, or slices of another dimension, each right, in another order; of the rank itself
// or of others.
struct Reordered {
  std::string kind;  // "the right columns in another order"
  std::string text;  // with the first ones
};
std::optional<Reordered> reordered(const Measured&);

// Ranks with other ranks' pieces, of which each has the one that it would have if the tensor were
// cut over another axis of the mesh.
struct OtherCut {
  std::string taken, meant;  // axes
};
// Of mistakes by holding that are none, or kOtherSlice.
std::optional<OtherCut> other_cut(const Parameter&, const std::vector<Mistake>&);

}  // namespace distgrad::dumps
