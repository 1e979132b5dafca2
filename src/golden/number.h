// Spells numbers as golden files do.
#pragma once

#include <string>

namespace distgrad::golden {

// Returns the shortest text that reads back as the same float64. It always has a point or an
// exponent, so that Python reads a float: "40.0", "0.1", "1e-07", "1e+16". -0 is "0.0". Non-finite
// numbers are "nan", "inf" and "-inf", without quotes.
std::string number_text(double value);

// Multiplies `bound` by 1.5 and rounds it to two digits. It is then shorter to read and still holds
// on a machine whose exp differs in the last bit. Bounds depend on the values and on which
// operations were exact.
double rounded_up(double bound);

}  // namespace distgrad::golden
