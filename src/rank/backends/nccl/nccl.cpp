// Builds libdistgrad-nccl.so: c10d's NCCL. Only this file sees CUDA's and NCCL's headers.
#define USE_C10D_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <torch/csrc/api/include/torch/version.h>
#include <torch/csrc/cuda/nccl.h>
#include <unistd.h>

#include <cstdlib>

#include "rank/backends/plugin.h"

namespace distgrad {
namespace {

// Makes the rank report errors: c10d's own threads must neither end the process nor wait beside it.
// wait() blocks, looks for NCCL's asynchronous errors and throws them after it has aborted the
// communicator. No watchdog starts then (ProcessGroupNCCL.hpp says what each does), so nobody would
// retire the flight recorder's notes, and it notes nothing.
void handle_errors_in_wait() {
  setenv("TORCH_NCCL_BLOCKING_WAIT", "1", 1);
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 1);
  setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", 1);
  setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 1);
  setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 1);
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
}

// Lets ranks share a GPU. NCCL before 2.30 refuses two ranks on one GPU ("Duplicate GPU detected",
// src/init.cc), later ones ask to be told. Older ones do not notice ranks that claim to be on
// different hosts; these talk over loopback. What the user has set stays.
void allow_sharing(int world_rank) {
  if (c10d::getNcclVersionNumber() >= 23000) {  // major * 10000 + minor * 100 + patch
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    return;
  }
  const std::string host =
      "distgrad-" + std::to_string(getppid()) + "-" + std::to_string(world_rank);
  setenv("NCCL_HOSTID", host.c_str(), 0);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  setenv("NCCL_NET", "Socket", 0);  // whatever network and plugin the machine has
  setenv("NCCL_IB_DISABLE", "1", 0);
  setenv("NCCL_MNNVL_ENABLE", "0", 0);  // it would join the hosts again, by the GPU's fabric
}

// Sets the environment before the first communicator only. c10d and NCCL start threads then, which
// may read the environment while it is written.
void prepare_environment(const PluginGroup& group) {
  static const bool once = [&] {
    handle_errors_in_wait();
    if (group.shares_device) allow_sharing(group.world_rank);
    return true;
  }();
  static_cast<void>(once);
}

std::string version_text(int major, int minor, int patch) {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

// Checks the size of ncclConfig_t, which grows from one NCCL to the next. ProcessGroupNCCL::Options
// holds one that is made here with this header's size and read by torch with its own header's.
// Which NCCL is loaded does not matter.
std::string unfit() {
  const std::uint64_t torchs = torch::cuda::nccl::version();
  const auto major = static_cast<int>(torchs >> 32),
             minor = static_cast<int>(torchs >> 16 & 0xffff);
  const auto patch = static_cast<int>(torchs & 0xffff);
  if (major == NCCL_MAJOR && minor == NCCL_MINOR && patch == NCCL_PATCH)
    return {};  // 2.30.7's has one field more than 2.30.3's
  return "it was built with the header of NCCL " +
         version_text(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH) + ", and torch with that of " +
         version_text(major, minor, patch) +
         "; name the folder of the right nccl.h in DISTGRAD_CUDA_HINTS and build again";
}

std::string version() { return "NCCL " + c10d::getNcclVersion(); }

c10::intrusive_ptr<c10d::Backend> connect(const PluginGroup& group) {
  prepare_environment(group);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::hours(24);  // the driver watches the clock
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(group.store, group.rank, group.size, options);
}

const BackendPlugin kPlugin = {
    kPluginLayout, TORCH_VERSION, at::kCUDA, c10d::ProcessGroup::BackendType::NCCL,
    version,       unfit,         connect};

}  // namespace
}  // namespace distgrad

extern "C" __attribute__((visibility("default"))) const distgrad::BackendPlugin*
distgrad_backend_plugin() {
  return &distgrad::kPlugin;
}
