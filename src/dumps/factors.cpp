#include "dumps/factors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/words.h"

namespace distgrad::dumps {
namespace {

bool is_near(double measured, double value, double precision) {
  return std::abs(measured - value) <= precision * std::abs(value);
}

std::string sized_text(double value, const std::string& size, bool inverse) {
  const std::string amount =
      inverse ? fmt::format("1/{} of", number_text(1 / value)) : number_text(value) + " times";
  return fmt::format("{} the reference ({}{})", amount, inverse ? "1/" : "", size);
}

// The sizes that a factor can come from, with the words for each; equal ones are told together.
std::vector<std::pair<int, std::string>> sizes(int world_size,
                                               const std::vector<AxisGroups>& axes) {
  std::vector<std::pair<int, std::string>> all;
  const auto add = [&](int size, const std::string& text) {
    if (size < 2) return;
    const auto same =
        std::find_if(all.begin(), all.end(), [&](const auto& s) { return s.first == size; });
    if (same == all.end())
      all.push_back({size, text});
    else
      same->second += " or " + text;
  };
  for (const AxisGroups& axis : axes)
    if (axis.size != world_size) add(axis.size, "the size of " + axis.name);
  add(world_size, fmt::format("N, the number of ranks"));
  return all;
}

constexpr double kLeastScale = 16;  // of a GradScaler, which starts at 65536 and halves

}  // namespace

NamedFactor name_factor(double measured, int world_size, const std::vector<AxisGroups>& axes,
                        double precision) {
  const double sign = measured < 0 ? -1 : 1;
  const double magnitude = std::abs(measured);
  const auto named = [&](double value, const std::string& text) {
    return NamedFactor{sign * value, true, (sign < 0 ? "minus " : "") + text};
  };
  if (is_near(measured, -1, precision)) return {-1, true, "the negative of the reference"};
  for (const auto& [size, text] : sizes(world_size, axes)) {
    if (is_near(magnitude, size, precision)) return named(size, sized_text(size, text, false));
    if (is_near(magnitude, 1.0 / size, precision))
      return named(1.0 / size, sized_text(1.0 / size, text, true));
  }
  const double power = std::exp2(std::round(std::log2(magnitude)));
  if (power >= kLeastScale && is_near(magnitude, power, precision))
    return named(
        power,
        fmt::format("{} times the reference (2^{}: a loss scale that was not taken out again?)",
                    number_text(power), number_text(std::log2(power))));
  constexpr double kRatioPrecision =
      1e-3;  // where factors are less certain every number is near a ratio
  if (precision <= kRatioPrecision)
    for (int denominator = 1; denominator <= 16; ++denominator) {
      const double value = std::round(magnitude * denominator) / denominator;
      if (value == 0 || value > 16 || value == 1 || !is_near(magnitude, value, precision)) continue;
      const std::string ratio = ratio_text(value);
      return named(value, ratio + (value < 1 ? " of the reference" : " times the reference"));
    }
  return {measured, false, number_text(measured, 3) + " times the reference"};
}

}  // namespace distgrad::dumps
