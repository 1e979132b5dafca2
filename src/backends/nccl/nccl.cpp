// libdistgrad-nccl.so: c10d's NCCL. The one file that sees CUDA's and NCCL's headers.
#define USE_C10D_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <torch/csrc/api/include/torch/version.h>
#include <unistd.h>

#include <cstdlib>

#include "backends/plugin.h"

namespace distgrad {
namespace {

// An error is the rank's to tell: c10d's own threads must neither end the process nor wait beside it. wait() blocks, looks for
// NCCL's asynchronous errors and throws them, after it has aborted the communicator. (ProcessGroupNCCL.hpp says what each does.)
void handle_errors_in_wait() {
  setenv("TORCH_NCCL_BLOCKING_WAIT", "1", 1);
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 1);
  setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", 1);
  setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 1);
  setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 1);
}

// NCCL refuses two ranks on one GPU before 2.30, and asks to be told from there on. Before, ranks that call themselves different
// hosts do not notice; they talk over loopback. What the user has set stays.
void allow_sharing(int world_rank) {
  if (c10d::getNcclVersionNumber() >= 23000) {  // major * 10000 + minor * 100 + patch
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    return;
  }
  const std::string host = "distgrad-" + std::to_string(getppid()) + "-" + std::to_string(world_rank);
  setenv("NCCL_HOSTID", host.c_str(), 0);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  setenv("NCCL_IB_DISABLE", "1", 0);
}

std::string version() { return "NCCL " + c10d::getNcclVersion(); }

c10::intrusive_ptr<c10d::Backend> connect(const PluginGroup& group) {
  handle_errors_in_wait();
  if (group.shares_device) allow_sharing(group.world_rank);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::hours(24);  // the driver watches the clock
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(group.store, group.rank, group.size, options);
}

const BackendPlugin kPlugin = {kPluginLayout, TORCH_VERSION, at::kCUDA, c10d::ProcessGroup::BackendType::NCCL,
                               version,       connect};

}  // namespace
}  // namespace distgrad

extern "C" __attribute__((visibility("default"))) const distgrad::BackendPlugin* distgrad_backend_plugin() {
  return &distgrad::kPlugin;
}
