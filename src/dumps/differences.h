// Measures how far two streams of elements lie apart, and whether that is rounding.
#pragma once

#include <optional>
#include <vector>

#include "dumps/boxes.h"

namespace distgrad::dumps {

// Returns the relative tolerance for gradients that were computed in this dtype.
double default_rtol(DType);
double unit_roundoff(DType);
DType coarser(DType, DType);
bool is_narrow(DType);  // float16, bfloat16

struct Bound {
  double rtol = 0;
  double atol = 0;         // of an element
  double floor = 0;        // of an element, too: rounding at the size of the tensor's largest
  double model_floor = 0;  // the same at the size of the model's largest gradient
  bool elementwise = false;

  double of_element(double max_expected) const;
  double of_norm(double size, double expected_norm) const;
};

// Holds what the user asked for, and what rounding may leave; docs/compare.md has the defaults.
struct Tolerance {
  std::optional<double> rtol = std::nullopt;
  std::optional<double> atol = std::nullopt;
  bool elementwise = false;  // relative to each element, as torch.allclose
  // Holds the dtype the run computed in, if that is coarser than the saved one.
  std::optional<DType> dtype = std::nullopt;
  // True if something on the gradients' way was seen in a dtype that explains near differences.
  bool saw_short_dtype = false;
  // Holds the model's largest gradient. What is zero on paper (a bias before a normalisation, the
  // bias of attention's keys) is rounding beside it. 0 means unknown.
  double model_largest = 0;
  double model_largest_observed = 0;  // the same for the run

  DType computed_in(DType saved) const;
  Bound bound(DType saved, double largest_of_whole) const;
  // Lies beyond the bound, but no further than a short dtype's rounding goes in a deep network.
  Bound near_bound(DType saved, double largest_of_whole) const;
  // Returns true if near differences may be rounding: nobody asked for more, and the dtype is
  // short.
  bool forgives_near(DType saved) const;
  // Returns true if rounding is their likeliest cause, forgiven or not.
  bool is_near_by_rounding(DType saved) const;
};

// Combines several readers' elements, times a factor. There is at least one reader; all have one
// size.
struct Stream {
  enum class Reduction { kSum, kMax, kMin, kProduct };
  std::vector<BoxReader> terms;
  double factor = 1;
  Reduction reduction = Reduction::kSum;

  std::int64_t size() const { return terms.front().size(); }
  void read(std::int64_t begin, std::int64_t count, double* out) const;
};

// Holds what one pass over observed and expected shows. Elements that are not finite count only in
// `strange`, in `equally_strange` if they are the same NaN or infinity on both sides, or in
// `unknown` if something else is observed where it is the expected one that is not finite.
struct Differences {
  std::int64_t size = 0;
  double max_error = 0, error_squares = 0;
  double max_expected = 0, expected_squares = 0;
  double max_observed = 0;
  double product = 0;      // observed times expected, summed
  std::int64_t worst = 0;  // where the error is largest, or the first strange element
  double worst_observed = 0, worst_expected = 0;
  std::int64_t strange = 0, equally_strange = 0, unknown = 0;
  std::int64_t beyond = 0;  // elements beyond their own bound, if it is element-wise

  // Returns the ratio of the 2-norms; infinite if the expected one is 0 and the error is not.
  double relative_error() const;
};

Differences measure(const Stream& observed, const Stream& expected, const Bound&);

// Returns true if the differences are within the bound: the largest error relative to the largest
// element, and the 2-norm of the errors relative to that of the elements; or each element by
// itself. Unknown elements are left out.
bool within(const Differences&, const Bound&);

// Returns true if observed is `factor` times expected, and at most `most_squares` remains of the
// squared errors. Stops at the first element that is not. `max_expected` is the largest finite
// magnitude of expected.
bool agrees(const Stream& observed, const Stream& expected, double factor, const Bound&,
            double max_expected, double most_squares);

// Returns the largest finite magnitude.
double largest(const Stream&);

double sum_of_squares(const Stream&);  // NaN if an element is not finite

// Returns true if each element is nonzero in at most one stream, and at least two streams are
// nonzero somewhere.
bool are_disjoint(const std::vector<const Stream*>& streams);

}  // namespace distgrad::dumps
