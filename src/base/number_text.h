// Spells numbers as text: the shortest that reads back, or as a person would say a ratio.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace distgrad {

inline constexpr int kShortest = 0;  // as many digits as reading the number back needs

// Returns for example "20", "0.333333" (digits 6), "1e-07", "nan", "inf" or "-inf".
std::string number_text(double value, int digits = kShortest);

// Returns a ratio as a person would say it: "1/2", "3", "0.37". Finds fractions down to 64ths.
std::string ratio_text(double ratio);

// Returns for example "1 case" or "3 cases".
std::string count_text(std::int64_t count, std::string_view noun);

// Returns for example "16 B", "512 MiB" or "1.5 GiB".
std::string bytes_text(std::uint64_t bytes);

}  // namespace distgrad
