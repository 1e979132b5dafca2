// Measures each of a parameter's holdings against the reference, and says what can be said of each
// by itself.
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
  // For pieces on several ranks in a short dtype, says whether together they are right, or near.
  bool is_right_as_a_whole = false, is_near_as_a_whole = false;
  std::vector<Differences> differences;  // one a holding; without a gradient only max_expected

  const Holding& holding(std::size_t h) const { return parameter.holdings[h]; }
  // Returns true for a piece that is rounding beside the rest of the tensor, so that right and
  // wrong cannot be distinguished.
  bool is_zero_piece(std::size_t h) const { return differences[h].max_expected <= bound.floor; }
  // Returns true if `observed` is `factor` times what the holding should be, and that leaves little
  // of `error_squares`, which must be explained. A short dtype may leave more of a factor that is
  // `known` beforehand than of a fitted one.
  bool explains(const Stream& observed, std::size_t h, double factor, double error_squares,
                bool known) const;
  // Returns true if two holdings hold the same piece with the same numbers.
  bool are_copies(std::size_t a, std::size_t b) const;
  double factor_precision() const;
  bool is_near_everywhere() const;
  // Returns true for holdings too small to be judged by a norm of their own.
  bool has_few_numbers(std::size_t h) const { return holding(h).size() < 8; }
};

Measured measured(const Parameter&, const Tolerance&);

// Lists rows, along the first dimension, of a holding of the whole that are not right.
struct WrongRows {
  std::vector<std::int64_t> rows;
  bool are_zero = true;  // all of their elements are 0
};
WrongRows wrong_rows(const Measured&, std::size_t h);

// Says what is wrong with one holding.
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
  std::size_t piece_of = 0;  // of kOtherSlice: the holding whose piece it is
};

Mistake mistake_of(const Measured&, std::size_t h, const FactorNames&);

}  // namespace distgrad::dumps
