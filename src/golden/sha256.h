// SHA-256 (FIPS 180-4), for naming texts and tensors by what is in them.
#pragma once

#include <string>
#include <string_view>

namespace distgrad::golden {

// 64 lower-case hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace distgrad::golden
