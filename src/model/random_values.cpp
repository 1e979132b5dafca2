#include "model/random_values.h"

namespace distgrad {
namespace {

// splitmix64's output function, and FNV-1a.
std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

std::uint64_t fnv1a(const std::string& text) {
  std::uint64_t h = 0xCBF29CE484222325ull;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return h;
}

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
  for (std::uint64_t k = 0; k < 12; ++k) sum += uniform(12 * i + k);
  return sum - 6;
}

std::uint64_t RandomValues::bits(std::uint64_t i) const {
  return mixed(start_ + (i + 1) * 0x9E3779B97F4A7C15ull);
}
double RandomValues::uniform(std::uint64_t i) const {
  return static_cast<double>(bits(i) >> 11) * 0x1p-53;
}

}  // namespace distgrad
