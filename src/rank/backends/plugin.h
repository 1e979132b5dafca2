// Loads a backend from a shared library of its own, so that what it needs (CUDA, NCCL) is loaded
// only if it is used. The library lies beside distgrad-rank as libdistgrad-NAME.so and is built
// together with it, against the same torch.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <stdexcept>
#include <string>

namespace distgrad {

inline constexpr int kPluginLayout = 2;  // of BackendPlugin and PluginGroup

// Describes one rank's end of a group that is to be connected.
struct PluginGroup {
  c10::intrusive_ptr<c10d::Store> store;  // this group's alone
  int rank = 0;                           // in the group
  int size = 1;
  at::Device device = at::kCPU;  // where its tensors will be; current
  int world_rank = 0;
  bool shares_device = false;  // some ranks of the world share a device
};

struct BackendPlugin {
  int layout = kPluginLayout;
  const char* torch = "";            // the version it was built with
  at::DeviceType device = at::kCPU;  // of the tensors that it takes
  c10d::ProcessGroup::BackendType type = c10d::ProcessGroup::BackendType::CUSTOM;
  std::string (*version)() = nullptr;  // of the library that does the collectives, "NCCL 2.30.7"
  // Returns why the library does not fit the torch that loaded it, beyond the version, or "".
  std::string (*unfit)() = nullptr;
  // Blocks until all ranks of the group are there, or leaves that to the first collective. Throws.
  c10::intrusive_ptr<c10d::Backend> (*connect)(const PluginGroup&) = nullptr;
};

// Says in a line why a backend cannot be used here.
class UnavailableBackend : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Returns where a backend's library should be: the environment variable DISTGRAD_NCCL_LIBRARY (for
// "nccl"), else beside the executable.
std::string plugin_path(const std::string& backend);

// Throws UnavailableBackend if there is no such file because this build was made without it.
void check_plugin_is_there(const std::string& backend);

// Loads the library, once. Throws UnavailableBackend.
const BackendPlugin& load_plugin(const std::string& backend);

}  // namespace distgrad

// Every such library defines this.
extern "C" const distgrad::BackendPlugin* distgrad_backend_plugin();
