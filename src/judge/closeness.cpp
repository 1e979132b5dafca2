#include "judge/closeness.h"

#include "model/distance.h"

namespace distgrad {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

double unit_roundoff(DType dtype) { return std::ldexp(1.0, -traits(dtype).significand_bits); }

double rounded_to(DType dtype, double value) {
  if (dtype == DType::kFloat64 || value == 0 || !std::isfinite(value)) return value;
  const DTypeTraits& t = traits(dtype);
  int exponent = 0;
  std::frexp(value, &exponent);  // |value| in [2^(exponent-1), 2^exponent)
  const int lowest_bit = std::max(exponent - t.significand_bits, t.min_exponent);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -lowest_bit)), lowest_bit);
  // float32 and bfloat16 share exponents, float16 has its own. 2^(3 - min - bits) is one past the
  // largest power, since the smallest subnormal is 2^(2 - bias - bits + 1) and the bias symmetric.
  const int overflow_exponent = 3 - t.min_exponent - t.significand_bits;
  return std::abs(rounded) >= std::ldexp(1.0, overflow_exponent) ? std::copysign(kInfinity, value)
                                                                 : rounded;
}

bool within(double observed, double wanted, double bound) {
  const double error = distance(observed, wanted);
  return error == 0 || error <= bound;
}

double largest_magnitude(std::span<const double> values) {
  double largest = 0;
  for (const double v : values)
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  return largest;
}

void Difference::add_element(std::int64_t element, double observed, double wanted,
                             double bound_here) {
  const double error = distance(observed, wanted);
  if (error == 0) {
    largest_bound_ = std::max(largest_bound_, bound_here);
    return;
  }
  const bool differs = !(error <= bound_here);
  max_abs_error = std::max(max_abs_error, error);
  if (wanted != 0 || differs) {
    const double relative =
        std::isfinite(error) && wanted != 0 ? error / std::abs(wanted) : kInfinity;
    max_rel_error = std::max(max_rel_error, relative);
  }
  if (differs && equal) {
    equal = false;
    first = element;
    worst_error_ = -1;  // from here on only elements that differ count
  }
  if (differs == !equal && error > worst_error_) {
    worst_error_ = error;
    bound = bound_here;
  }
}

void Difference::add(const Difference& other) {
  max_abs_error = std::max(max_abs_error, other.max_abs_error);
  max_rel_error = std::max(max_rel_error, other.max_rel_error);
  largest_bound_ = std::max(largest_bound_, other.largest_bound_);
  if (!other.equal && equal) {
    first = other.first;
    bound = other.bound;
    worst_error_ = other.worst_error_;
  } else if (other.equal == equal && other.worst_error_ > worst_error_) {
    bound = other.bound;
    worst_error_ = other.worst_error_;
  }
  equal = equal && other.equal;
  if (worst_error_ < 0) bound = largest_bound_;
}

}  // namespace distgrad
