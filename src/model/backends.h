// The backends by name, as a scenario and `distgrad list backends` know them.
#pragma once

#include <array>
#include <string_view>

namespace distgrad {

struct BackendRow {
  std::string_view name;
  std::string_view what;         // one line
  std::string_view unavailable;  // why this build cannot run it; empty where it can
};

inline constexpr std::array<BackendRow, 2> kBackends = {{
    // name, what, unavailable
    {"gloo", "Gloo, on the CPU, over loopback", ""},
    {"nccl", "NCCL, on GPUs", "the backend nccl is not available in this build"},
}};

constexpr const BackendRow* backend_named(std::string_view name) {
  for (const BackendRow& row : kBackends)
    if (row.name == name) return &row;
  return nullptr;
}

}  // namespace distgrad
