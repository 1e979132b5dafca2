// The backends by name: what carries the ranks' collectives.
#pragma once

#include <array>
#include <string_view>

namespace distgrad {

struct BackendRow {
  std::string_view name;
  std::string_view summary;
};

inline constexpr std::array<BackendRow, 1> kBackends = {{
    // name, summary
    {"gloo", "Gloo, as linked into torch, on CPU tensors over the loopback interface"},
}};

constexpr bool is_backend(std::string_view name) {
  for (const BackendRow& row : kBackends)
    if (row.name == name) return true;
  return false;
}

}  // namespace distgrad
