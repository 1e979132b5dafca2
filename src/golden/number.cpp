#include "golden/number.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

namespace distgrad::golden {

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value == 0 ? 0.0 : value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

double rounded_up(double bound) {
  if (bound == 0 || !std::isfinite(bound)) return bound;
  // Rounding to two digits lowers the value by less than 5 per cent.
  return std::strtod(fmt::format("{:.1e}", bound * 1.5).c_str(), nullptr);
}

}  // namespace distgrad::golden
