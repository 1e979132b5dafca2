#include "base/number_text.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace distgrad {

std::string number_text(double value, int digits) {
  if (std::isnan(value)) return "nan";  // never "-nan"
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return digits == kShortest ? fmt::format("{}", value) : fmt::format("{:.{}g}", value, digits);
}

std::string ratio_text(double ratio) {
  constexpr int kLargestDenominator = 64;
  for (int denominator = 1; denominator <= kLargestDenominator; ++denominator) {
    const double numerator = std::round(ratio * denominator);
    const bool small = numerator != 0 && std::abs(numerator) <= 1e6;
    if (!small || std::abs(ratio * denominator - numerator) > 1e-9 * std::abs(numerator)) continue;
    return denominator == 1 ? number_text(numerator) : fmt::format("{}/{}", numerator, denominator);
  }
  return number_text(ratio, 6);
}

std::string count_text(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double count = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; count >= 1024 && unit + 1 < std::size(kUnits); ++unit) count /= 1024;
  return fmt::format("{:.4g} {}", count, kUnits[unit]);
}

}  // namespace distgrad
