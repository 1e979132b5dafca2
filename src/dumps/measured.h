// A parameter's holdings, each measured against the reference, and what may be said of each by
// itself.
#pragma once

#include <string>
#include <vector>

#include "dumps/parameter.h"
#include "judge/factor_names.h"

namespace distgrad::dumps {

struct Measured {
  const Parameter& parameter;
  Bound bound;
  Bound near_bound;
  bool forgives_near = false;
  // In a short dtype, of pieces on several ranks: whether all of them together are right, or near.
  bool is_right_as_a_whole = false, is_near_as_a_whole = false;
  std::vector<Differences> differences;  // one a holding; without a gradient: max_expected alone

  const Holding& holding(std::size_t h) const { return parameter.holdings[h]; }
  // Rounding beside the rest of the tensor: right and wrong cannot be told apart there.
  bool is_zero_piece(std::size_t h) const { return differences[h].max_expected <= bound.floor; }
  // Whether `observed` is `factor` times what the holding should be, where that leaves little of
  // `error_squares`, which are to be explained. A short dtype may leave more of a factor that is
  // `known` beforehand than of one that is fitted.
  bool explains(const Stream& observed, std::size_t h, double factor, double error_squares,
                bool known) const;
  // Whether two holdings hold the same piece and the same numbers of it.
  bool are_copies(std::size_t a, std::size_t b) const;
  double factor_precision() const;
  bool is_near_everywhere() const;
  // Too few to have a norm of their own to be judged by.
  bool has_few_numbers(std::size_t h) const { return holding(h).size() < 8; }
};

Measured measured(const Parameter&, const Tolerance&);

// What is the matter with one holding.
struct Mistake {
  enum class Kind {
    kNone,
    kMissing,
    kNotFinite,
    kZero,
    kScaled,
    kOtherSlice,
    kTransposed,
    kUnknown
  };
  Kind kind = Kind::kUnknown;
  NamedFactor factor;        // of kScaled
  std::string text;          // after "on rank 1": "1/2 of the reference"
  std::size_t piece_of = 0;  // of kOtherSlice, the holding whose piece it is
};

Mistake mistake_of(const Measured&, std::size_t h, const FactorNames&);

}  // namespace distgrad::dumps
