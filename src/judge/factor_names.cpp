#include "judge/factor_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/number_text.h"

namespace distgrad {
namespace {

constexpr double kLeastLossScale = 1024;  // a GradScaler's scale starts at 65536 and halves

bool is_near(double measured, double value, double precision) {
  return std::abs(measured - value) <= precision * std::abs(value);
}

// Returns the number that the magnitude is, or is the inverse of.
std::optional<int> size_near(double magnitude, double precision) {
  constexpr double kMost = 1e6;
  const double size = std::round(magnitude >= 1 ? magnitude : 1 / magnitude);
  if (size < 2 || size > kMost) return std::nullopt;
  const bool fits = is_near(magnitude, magnitude >= 1 ? size : 1 / size, precision);
  return fits ? std::optional(static_cast<int>(size)) : std::nullopt;
}

std::string amount_text(double magnitude) {
  return ratio_text(magnitude) + (magnitude < 1 ? " of" : " times");
}

// Returns the ratio of small numbers that the magnitude is, unless many numbers are so near to one.
std::optional<double> small_ratio_near(double magnitude, double precision, bool narrow) {
  constexpr double kMostByChance = 0.1;
  const int most = narrow ? 4 : 16;
  for (int denominator = 1; denominator <= most; ++denominator) {
    const double value = std::round(magnitude * denominator) / denominator;
    if (denominator * denominator * value * precision > kMostByChance) break;
    if (value != 0 && value <= 16 && value != 1 && is_near(magnitude, value, precision))
      return value;
  }
  return std::nullopt;
}

}  // namespace

std::string NamedFactor::of(std::string_view whole) const {
  return fmt::format("{} {}{}", amount, whole, meaning.empty() ? "" : " (" + meaning + ")");
}

NamedFactor FactorNames::name(double measured, double precision) const {
  const double sign = measured < 0 ? -1 : 1;
  const double magnitude = std::abs(measured);
  const auto named = [&](double value, bool is_size, std::string meaning) {
    return NamedFactor{
        sign * value,      true, is_size, false, (sign < 0 ? "minus " : "") + amount_text(value),
        std::move(meaning)};
  };
  if (is_near(measured, -1, precision)) return {-1, true, false, false, "the negative of", ""};
  const auto size = size_near(magnitude, precision);
  const double exact = !size ? 0 : magnitude >= 1 ? *size : 1.0 / *size;
  if (size)
    if (const std::string what = sized(*size); !what.empty())
      return named(exact, true, fmt::format("{} = {}", *size, what));
  const double power = std::exp2(std::round(std::log2(magnitude)));
  if (power >= kLeastLossScale && is_near(magnitude, power, precision)) {
    NamedFactor scale = named(power, false,
                              fmt::format("2^{}: a loss scale that was not taken out again?",
                                          number_text(std::log2(power))));
    scale.is_loss_scale = true;
    return scale;
  }
  if (size)
    if (const std::string what = product_of(*size); !what.empty())
      return named(exact, true, fmt::format("nothing here is {0}; {0} = {1}", *size, what));
  if (const auto ratio = small_ratio_near(magnitude, std::min(precision, 5e-3), narrow_))
    return named(*ratio, false, "");
  return unnamed(measured);
}

std::optional<NamedFactor> FactorNames::shown(double measured, double precision) const {
  for (const double factor : shown_)
    if (is_near(measured, factor, precision)) return unnamed(factor);
  return std::nullopt;
}

NamedFactor FactorNames::unnamed(double measured) {
  int digits = 3;  // or as many as it takes to differ from 1
  while (digits < 17 && number_text(std::abs(measured), digits) == "1") ++digits;
  return {measured, false, false, false, number_text(measured, digits) + " times", ""};
}

// Names what has that size, "the size of dp or tp, or the number of ranks", or returns "".
std::string FactorNames::sized(int size) const {
  std::vector<std::string> axes, parts;
  for (const NamedCount& c : counts_)
    if (c.count == size && c.kind == NamedCount::Kind::kAxis) axes.push_back(c.name);
  if (!axes.empty()) parts.push_back(fmt::format("the size of {}", fmt::join(axes, " or ")));
  for (const NamedCount& c : counts_)
    if (c.count == size && c.kind == NamedCount::Kind::kOther) {
      const std::string what = "the number of " + c.name;
      if (std::find(parts.begin(), parts.end(), what) == parts.end()) parts.push_back(what);
    }
  return fmt::format("{}", fmt::join(parts, ", or "));
}

// Returns "2 x 8 or 4 x 4, with 2 = the size of dp, 4 = ..., 8 = ...", or "" if no product fits.
std::string FactorNames::product_of(int size) const {
  std::set<int> factors;
  std::vector<std::string> products, legend;
  for (int a = 2; a * a <= size; ++a) {
    const int b = size / a;
    if (a * b != size || sized(a).empty() || sized(b).empty()) continue;
    products.push_back(fmt::format("{} x {}", a, b));
    factors.insert({a, b});
  }
  for (const int f : factors) legend.push_back(fmt::format("{} = {}", f, sized(f)));
  if (products.empty()) return {};
  return fmt::format("{}, with {}", fmt::join(products, " or "), fmt::join(legend, ", "));
}

}  // namespace distgrad
