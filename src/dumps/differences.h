// How far two streams of elements lie apart, and whether that is rounding.
#pragma once

#include <optional>
#include <vector>

#include "dumps/boxes.h"

namespace distgrad::dumps {

// The relative tolerance for gradients that were computed in this dtype.
double default_rtol(DType);
double unit_roundoff(DType);
bool is_narrow(DType);  // float16, bfloat16

struct Bound {
  double rtol = 0;
  double atol = 0;         // of an element
  double floor = 0;        // of an element too: rounding at the size of the tensor's largest
  double model_floor = 0;  // the same at the size of the model's largest gradient
  bool elementwise = false;

  double of_element(double max_expected) const;
  double of_norm(double size, double expected_norm) const;
};

// What the user asked for, and what rounding may leave; docs/compare.md has the defaults.
struct Tolerance {
  std::optional<double> rtol = std::nullopt;
  std::optional<double> atol = std::nullopt;
  bool elementwise = false;  // as torch.allclose: relative to each element
  // What the run computed in, where that is coarser than what was saved.
  std::optional<DType> dtype = std::nullopt;
  // Whether something on the gradients' way was seen to be in a dtype that explains what is near.
  bool saw_short_dtype = false;
  // The largest gradient of the model. What is zero on paper (a bias before a normalisation, the
  // bias of attention's keys) is rounding beside it. 0: not known.
  double model_largest = 0;
  double model_largest_observed = 0;  // likewise, of the run

  DType computed_in(DType saved) const;
  Bound bound(DType saved, double largest_of_whole) const;
  // Beyond the bound, and no further than a short dtype's rounding goes in a deep network.
  Bound near_bound(DType saved, double largest_of_whole) const;
  // Whether what is near may be what rounding left: nobody asked for more, and the dtype is short.
  bool forgives_near(DType saved) const;
  // Whether that is its likeliest cause, forgiven or not.
  bool is_near_by_rounding(DType saved) const;
};

// What several readers' elements come to, times a factor. At least one reader; all of one size.
struct Stream {
  enum class Reduction { kSum, kMax, kMin, kProduct };
  std::vector<BoxReader> terms;
  double factor = 1;
  Reduction reduction = Reduction::kSum;

  std::int64_t size() const { return terms.front().size(); }
  void read(std::int64_t begin, std::int64_t count, double* out) const;
};

// What one pass over observed and expected tells. Elements that are not finite count in `strange`
// unless both are the same NaN or infinity, and in nothing else.
struct Differences {
  std::int64_t size = 0;
  double max_error = 0, error_squares = 0;
  double max_expected = 0, expected_squares = 0;
  double max_observed = 0;
  double product = 0;      // of observed and expected, summed
  std::int64_t worst = 0;  // where the error is largest, or the first strange element
  double worst_observed = 0, worst_expected = 0;
  std::int64_t strange = 0;
  std::int64_t beyond = 0;  // elements beyond their own bound, with an element-wise one

  // Of the 2-norms; infinite where the expected one is 0 and the error is not.
  double relative_error() const;
};

Differences measure(const Stream& observed, const Stream& expected, const Bound&);

// Whether what was measured is within the bound: the largest error against the largest element, and
// the 2-norm of the errors against that of the elements; or each element by itself.
bool within(const Differences&, const Bound&);

// Whether observed is `factor` times expected, and no more than `most_squares` remains of squared
// errors. Ends at the first element that is not. `max_expected` is the largest finite magnitude of
// expected.
bool agrees(const Stream& observed, const Stream& expected, double factor, const Bound&,
            double max_expected, double most_squares);

// The largest finite magnitude.
double largest(const Stream&);

double sum_of_squares(const Stream&);

// Whether at no element more than one of the streams is not zero, and two of them are somewhere.
bool are_disjoint(const std::vector<const Stream*>& streams);

}  // namespace distgrad::dumps
