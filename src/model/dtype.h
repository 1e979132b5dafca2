// Lists the dtypes of cases, with the figures that a derived tolerance needs.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace distgrad {

enum class DType { kFloat64, kFloat32, kBFloat16, kFloat16 };

struct DTypeTraits {
  DType dtype;
  std::string_view name;  // torch's name, as in a scenario file
  int significand_bits;   // with the implicit bit
  int min_exponent;       // the smallest positive subnormal is 2^min_exponent
  int bytes;
};

inline constexpr std::array<DTypeTraits, 4> kDTypes = {{
    {DType::kFloat64, "float64", 53, -1074, 8},
    {DType::kFloat32, "float32", 24, -149, 4},
    {DType::kBFloat16, "bfloat16", 8, -133, 2},
    {DType::kFloat16, "float16", 11, -24, 2},
}};

constexpr const DTypeTraits& traits(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)];
}

constexpr std::optional<DType> dtype_named(std::string_view name) {
  for (const DTypeTraits& t : kDTypes)
    if (t.name == name) return t.dtype;
  return std::nullopt;
}

}  // namespace distgrad
