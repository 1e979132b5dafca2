// Recognises pieces that are made of the right numbers in the wrong places.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dumps/measured.h"

namespace distgrad::dumps {

// Says that each rank holds the sum of what ranks with other parts of the tensor should hold: it
// was reduced along an axis that cuts it.
struct SummedParts {
  std::string axis;
  std::string text;
  NamedFactor factor;
};
// The axis and factor of such sums in a larger parameter. A parameter of few numbers is explained
// by them, too.
using ShownSum = std::pair<std::string, double>;
std::optional<SummedParts> summed_parts(const Measured&, const FactorNames&,
                                        const std::vector<ShownSum>& shown);

// Says that rows, columns, or slices of another dimension, of the rank itself or of others, are
// right but in another order.
struct Reordered {
  std::string kind;  // "the right columns in another order"
  std::string text;  // with the first of them
};
std::optional<Reordered> reordered(const Measured&);

// Says that ranks have the pieces that they would have if the tensor were cut over another axis of
// the mesh.
struct OtherCut {
  std::string taken, meant;  // axes
};
// `mistakes` by holding must be none, or kOtherSlice.
std::optional<OtherCut> other_cut(const Parameter&, const std::vector<Mistake>&);

}  // namespace distgrad::dumps
