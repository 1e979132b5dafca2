// Numbers as golden files spell them.
#pragma once

#include <string>

namespace distgrad::golden {

// The shortest text that reads back as the same float64, always with a point or an exponent, so
// that readers in Python get a float: "40.0", "0.1", "1e-07", "1e+16". -0 is "0.0". Non-finite
// numbers are "nan", "inf", "-inf", without quotes.
std::string number_text(double value);

// `bound` rounded up to two digits with about half of it to spare: less to read, and it still holds
// on a machine whose exp differs in the last bit. Bounds follow the values, and which operations
// were exact.
double rounded_up(double bound);

}  // namespace distgrad::golden
