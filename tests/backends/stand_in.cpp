// A backend library like libdistgrad-nccl.so that needs no GPU: Gloo on the CPU behind the same
// interface. With DISTGRAD_NCCL_LIBRARY naming it, `--backend nccl` loads it, starts its ranks as
// new programs and takes its errors. STAND_IN in the environment makes it fail as NCCL does.
#include <torch/csrc/distributed/c10d/exception.h>

#include <cstdlib>

#include "rank/backends/gloo.h"
#include "rank/backends/plugin.h"

namespace distgrad {

extern const char* const kStandInTorch;  // stand_in_torch.cpp

namespace {

std::string version() { return "a stand-in for NCCL"; }

c10::intrusive_ptr<c10d::Backend> connect(const PluginGroup& group) {
  const char* wish = std::getenv("STAND_IN");
  const std::string how = wish ? wish : "";
  if (how == "error" && group.rank == group.size - 1)
    C10_THROW_ERROR(DistBackendError,
                    "NCCL error in: stand_in.cpp:1, unhandled system error (run with "
                    "NCCL_DEBUG=INFO for details)");
  if (how == "timeout" && group.rank == 0)
    C10_THROW_ERROR(DistBackendError,
                    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1) ran "
                    "for 1000 milliseconds");
  if (how == "abort" && group.rank == 0) std::abort();
  return connect_gloo(group.store, group.rank, group.size);
}

std::string unfit() {
  const char* wish = std::getenv("STAND_IN");
  return wish && std::string(wish) == "unfit" ? "it is not what it seems" : "";
}

const BackendPlugin kPlugin = {
    kPluginLayout, kStandInTorch, at::kCPU, c10d::ProcessGroup::BackendType::GLOO,
    version,       unfit,         connect};

}  // namespace
}  // namespace distgrad

extern "C" __attribute__((visibility("default"))) const distgrad::BackendPlugin*
distgrad_backend_plugin() {
  return &distgrad::kPlugin;
}
