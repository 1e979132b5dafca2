#include "tolerance/precision.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace distgrad::tolerance {
namespace {

thread_local double more_ulps_of_functions = 0;

Format make_format(const DTypeTraits& t) {
  // In IEEE formats and bfloat16 the smallest subnormal is 2^(emin - p + 1), and emax = 1 - emin.
  const int emin = t.min_exponent + t.significand_bits - 1;
  const int emax = 1 - emin;
  Format f;
  f.significand_bits = t.significand_bits;
  f.min_exponent = t.min_exponent;
  f.unit_roundoff = std::ldexp(1.0, -t.significand_bits);
  f.largest = std::ldexp(2.0 - std::ldexp(1.0, 1 - t.significand_bits), emax);
  f.smallest = std::ldexp(1.0, t.min_exponent);
  f.smallest_normal = std::ldexp(1.0, emin);
  return f;
}

Arithmetic make_arithmetic(DType run, DType simulated) {
  const bool narrow = run == DType::kBFloat16 || run == DType::kFloat16;
  return {format_of(run), format_of(narrow ? DType::kFloat32 : run),
          format_of(simulated).unit_roundoff};
}

double gamma(double n, double unit_roundoff) {
  const double nu = n * unit_roundoff;
  return nu < 1 ? nu / (1 - nu) : kInfinity;
}

double rounding(const Format& format, double simulated, double magnitude, double ulps) {
  if (magnitude == 0) return 0;
  if (!(magnitude <= format.largest)) return kInfinity;  // may overflow in the run
  // 0.5 is arithmetic, which IEEE 754 fixes on every device.
  if (ulps > 0.5) ulps += more_ulps_of_functions;
  double error = 2 * ulps * (format.unit_roundoff + simulated) * magnitude;
  if (magnitude < 2 * format.smallest_normal) error += ulps * format.smallest;
  return error;
}

}  // namespace

const Format& format_of(DType dtype) {
  static const std::array<Format, 4> formats = {make_format(kDTypes[0]), make_format(kDTypes[1]),
                                                make_format(kDTypes[2]), make_format(kDTypes[3])};
  return formats[static_cast<std::size_t>(dtype)];
}

bool fits(const Format& format, double value) {
  if (format.significand_bits == 53 || value == 0) return true;
  const double size = std::fabs(value);
  if (!(size <= format.largest)) return !std::isfinite(value);
  if (size >= format.smallest_normal) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    return (bits & ((std::uint64_t{1} << (53 - format.significand_bits)) - 1)) == 0;
  }
  const double units = size / format.smallest;  // exact: a power of two, and no underflow in double
  return units == std::floor(units);
}

int lowest_bit(double value) {
  if (value == 0 || !std::isfinite(value)) return kNoBit;
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
  if (exponent == 0) return -1074 + std::countr_zero(fraction);
  return exponent - 1075 + (fraction == 0 ? 52 : std::countr_zero(fraction));
}

int significant_bits(double value) {
  if (value == 0 || !std::isfinite(value)) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);
  return exponent - lowest_bit(value);
}

void compute_functions_on_gpu(bool on_gpu) { more_ulps_of_functions = on_gpu ? kMoreUlpsOnGpu : 0; }

double Arithmetic::inner_rounding(double magnitude, double ulps) const {
  return rounding(inner, simulated, magnitude, ulps);
}
double Arithmetic::stored_rounding(double magnitude) const {
  return rounding(stored, simulated, magnitude, 0.5);
}
double Arithmetic::inner_gamma(double n) const {
  return n <= 0 ? 0 : gamma(n, inner.unit_roundoff) + gamma(n, simulated);
}
double Arithmetic::stored_gamma(double n) const {
  return n <= 0 ? 0 : gamma(n, stored.unit_roundoff) + gamma(n, simulated);
}

const Arithmetic& arithmetic_for(DType dtype, c10::ScalarType simulated) {
  static const std::array<Arithmetic, 4> as_case = {
      make_arithmetic(DType::kFloat64, DType::kFloat64),
      make_arithmetic(DType::kFloat32, DType::kFloat64),
      make_arithmetic(DType::kBFloat16, DType::kFloat64),
      make_arithmetic(DType::kFloat16, DType::kFloat64)};
  // A type that the program asked for by name is the same in the simulation and in the run.
  static const Arithmetic named_float32 = make_arithmetic(DType::kFloat32, DType::kFloat32);
  static const Arithmetic named_bfloat16 = make_arithmetic(DType::kBFloat16, DType::kBFloat16);
  static const Arithmetic named_float16 = make_arithmetic(DType::kFloat16, DType::kFloat16);
  switch (simulated) {
    case c10::ScalarType::Float:
      return named_float32;
    case c10::ScalarType::BFloat16:
      return named_bfloat16;
    case c10::ScalarType::Half:
      return named_float16;
    default:
      return as_case[static_cast<std::size_t>(dtype)];
  }
}

}  // namespace distgrad::tolerance
