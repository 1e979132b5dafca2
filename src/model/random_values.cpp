#include "model/random_values.h"

#include <cmath>

namespace distgrad {
namespace {

constexpr std::uint64_t kDraws = 12;  // uniforms that make a normal
constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15ull;

// These are splitmix64's output function and FNV-1a.
inline std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

std::uint64_t fnv1a(const std::string& text) {
  std::uint64_t h = 0xCBF29CE484222325ull;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return h;
}

// Computes 64-bit integers modulo `span`, many at once. It uses doubles, which have vector
// instructions and are exact up to 2^53.
struct Remainder {
  static constexpr double kMostSpan = 0x1p26;  // so that its square plus 2^32 is below 2^53

  explicit Remainder(double of) : span(of), inverse(1 / of), of_high(std::fmod(0x1p32, of)) {}

  // Takes a whole number below 2^53. The quotient is off by at most one.
  inline __attribute__((always_inline)) double of(double x) const {
    const double rest = x - static_cast<double>(static_cast<std::int64_t>(x * inverse)) * span;
    const double raised = rest < 0 ? rest + span : rest;
    return raised >= span ? raised - span : raised;
  }

  inline __attribute__((always_inline)) double operator()(std::uint64_t bits) const {
    const auto high = static_cast<double>(static_cast<std::int64_t>(bits >> 32));
    const auto low = static_cast<double>(static_cast<std::int64_t>(bits & 0xFFFFFFFF));
    return of(of(high) * of_high + low);
  }

  double span, inverse, of_high;
};

inline __attribute__((always_inline)) void integers(std::uint64_t start, std::uint64_t first,
                                                    double lowest, Remainder remainder, double* out,
                                                    std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    out[i] = lowest + remainder(mixed(start + (first + i + 1) * kStep));
}

// Adds the draws in a fixed order, since floating-point sums depend on it. All products are exact,
// so the bits are the same whether the compiler fuses or not.
inline __attribute__((always_inline)) void normals(std::uint64_t start, std::uint64_t first,
                                                   double* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    double sum = 0;
    std::uint64_t state = start + kDraws * (first + i) * kStep;
    for (std::uint64_t k = 0; k < kDraws; ++k)
      sum += static_cast<double>(static_cast<std::int64_t>(mixed(state += kStep) >> 11)) * 0x1p-53;
    out[i] = sum - 6;
  }
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DISTGRAD_WIDE_VECTORS __attribute__((target("avx512dq,avx512vl"), optimize("O3")))

DISTGRAD_WIDE_VECTORS void normals_by_vectors(std::uint64_t start, std::uint64_t first, double* out,
                                              std::size_t count) {
  normals(start, first, out, count);
}

DISTGRAD_WIDE_VECTORS void integers_by_vectors(std::uint64_t start, std::uint64_t first,
                                               double lowest, Remainder remainder, double* out,
                                               std::size_t count) {
  integers(start, first, lowest, remainder, out, count);
}

bool has_wide_vectors() {
  return __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
constexpr auto normals_by_vectors = normals;
constexpr auto integers_by_vectors = integers;
constexpr bool has_wide_vectors() { return false; }
#endif

}  // namespace

RandomValues::RandomValues(const RandomSpec& spec, const std::string& name, int rank)
    : kind_(spec.kind),
      low_(spec.low),
      high_(spec.high),
      start_(fnv1a(std::to_string(spec.seed) + "/" + name + "/" +
                   (rank < 0 ? "" : std::to_string(rank)))) {}

double RandomValues::operator[](std::uint64_t i) const {
  switch (kind_) {
    case RandomSpec::Kind::kIntegers: {
      const auto span = static_cast<std::uint64_t>(high_ - low_) + 1;
      return low_ + static_cast<double>(bits(i) % span);
    }
    case RandomSpec::Kind::kUniform:
      return low_ + (high_ - low_) * uniform(i);
    case RandomSpec::Kind::kNormal:
      break;
  }
  // Irwin-Hall: the sum of twelve uniforms has variance one. It needs no libm, so the bits are the
  // same on every machine.
  double sum = 0;
  for (std::uint64_t k = 0; k < kDraws; ++k) sum += uniform(kDraws * i + k);
  return sum - 6;
}

void RandomValues::fill(std::uint64_t first, std::span<double> out) const {
  const double span = high_ - low_ + 1;
  if (kind_ == RandomSpec::Kind::kNormal) {
    const auto fill = has_wide_vectors() ? normals_by_vectors : normals;
    fill(start_, first, out.data(), out.size());
  } else if (kind_ == RandomSpec::Kind::kIntegers && span <= Remainder::kMostSpan) {
    const auto fill = has_wide_vectors() ? integers_by_vectors : integers;
    fill(start_, first, low_, Remainder(span), out.data(), out.size());
  } else {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = (*this)[first + i];
  }
}

std::uint64_t RandomValues::bits(std::uint64_t i) const { return mixed(start_ + (i + 1) * kStep); }
double RandomValues::uniform(std::uint64_t i) const {
  return static_cast<double>(bits(i) >> 11) * 0x1p-53;
}

}  // namespace distgrad
