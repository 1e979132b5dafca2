#include "model/random_values.h"

namespace distgrad {
namespace {

constexpr std::uint64_t kDraws = 12;  // uniforms that make a normal
constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15ull;

// splitmix64's output function, and FNV-1a.
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

// The draws in their order, as sums of floating-point numbers depend on it. All products are exact:
// fused or not, the bits are the same.
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

void fill_normals(std::uint64_t start, std::uint64_t first, double* out, std::size_t count) {
  normals(start, first, out, count);
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DISTGRAD_HAS_WIDE_VECTORS
__attribute__((target("avx512dq,avx512vl"), optimize("O3"))) void fill_normals_by_vectors(
    std::uint64_t start, std::uint64_t first, double* out, std::size_t count) {
  normals(start, first, out, count);
}
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
  // Irwin-Hall: twelve uniforms have variance one; no libm, so the same bits everywhere.
  double sum = 0;
  for (std::uint64_t k = 0; k < kDraws; ++k) sum += uniform(kDraws * i + k);
  return sum - 6;
}

void RandomValues::fill(std::uint64_t first, std::span<double> out) const {
  if (kind_ != RandomSpec::Kind::kNormal) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = (*this)[first + i];
    return;
  }
#ifdef DISTGRAD_HAS_WIDE_VECTORS
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return fill_normals_by_vectors(start_, first, out.data(), out.size());
#endif
  fill_normals(start_, first, out.data(), out.size());
}

std::uint64_t RandomValues::bits(std::uint64_t i) const { return mixed(start_ + (i + 1) * kStep); }
double RandomValues::uniform(std::uint64_t i) const {
  return static_cast<double>(bits(i) >> 11) * 0x1p-53;
}

}  // namespace distgrad
