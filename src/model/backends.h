// Lists the backends by name, as scenarios and `distgrad list backends` use them. Only
// distgrad-rank knows whether this machine can use one (cli/accelerators.h).
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace distgrad {

struct BackendRow {
  std::string_view name;
  std::string_view what;                    // one line
  std::array<std::string_view, 2> devices;  // where its tensors may be; the first is the default
};

inline constexpr std::array<std::string_view, 2> kDevices = {"cpu", "cuda"};

inline constexpr std::array<BackendRow, 2> kBackends = {{
    // name, what, devices
    {"gloo", "Gloo, on the CPU or with tensors on GPUs, over loopback", {"cpu", "cuda"}},
    {"nccl", "NCCL, on GPUs", {"cuda", ""}},
}};

constexpr const BackendRow* backend_named(std::string_view name) {
  for (const BackendRow& row : kBackends)
    if (row.name == name) return &row;
  return nullptr;
}

constexpr bool takes_device(const BackendRow& row, std::string_view device) {
  return std::find(row.devices.begin(), row.devices.end(), device) != row.devices.end();
}

// Names the environment variable by which the driver lets several ranks share one GPU under NCCL
// (--share-gpu).
inline constexpr const char* kShareGpuVariable = "DISTGRAD_SHARE_GPU";

}  // namespace distgrad
