#include "rank/backends/backend_on_rank.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>

#include "model/backends.h"
#include "rank/backends/cuda.h"
#include "rank/backends/gloo_connection.h"
#include "rank/backends/meeting.h"
#include "rank/backends/plugin.h"
#include "rank/backends/traits_file.h"

namespace distgrad {
namespace {

// Turns TF32 off, which torch allows convolutions by default: the bounds are those of the dtype.
void compute_in_the_dtype() {
  setenv("NVIDIA_TF32_OVERRIDE", "0", 1);  // the switch of cuBLAS and cuDNN
}

}  // namespace

void preload(const std::string& transport) {
  try {
    const std::string backend = transport.substr(0, transport.find(' '));
    if (transport.ends_with(" on cuda")) compute_in_the_dtype();
    if (backend != "gloo") load_plugin(backend);
    if (transport.ends_with(" on cuda") && backend == "gloo") load_torch_cuda();
  } catch (const UnavailableBackend&) {
  }
}

BackendOnRank::BackendOnRank(const std::string& backend, const std::string& device, int rank,
                             int world_size)
    : name_(backend), world_rank_(rank), traits_(read_traits(backend)) {
  at::DeviceType type = device == "cuda" ? at::kCUDA : at::kCPU;
  if (backend != "gloo") {
    plugin_ = &load_plugin(backend);
    type = plugin_->device;
  }
  if (type != at::kCUDA) return;
  compute_in_the_dtype();
  load_torch_cuda();
  take_device(rank, world_size);
}

void BackendOnRank::take_device(int rank, int world_size) {
  const int count = cuda_device_count();
  if (count == 0) {
    const std::string why = find_cuda().unavailable;
    throw UnavailableBackend(why.empty() ? "torch finds no GPU" : why);
  }
  const int ranks_here = local_size(world_size);
  shares_device_ = ranks_here > count;
  const char* share = std::getenv(kShareGpuVariable);
  if (plugin_ && shares_device_ && !(share && *share))
    throw UnavailableBackend(std::to_string(ranks_here) +
                             " ranks need as many GPUs, and there are " + std::to_string(count) +
                             "; --share-gpu lets ranks share one");
  device_ = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(local_rank(rank) % count));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device_);
}

std::unique_ptr<Connection> BackendOnRank::connect(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                   int size, const std::string& name) const {
  if (!plugin_) return make_gloo_connection(std::move(store), rank, size, name, traits_, device_);
  auto backend = plugin_->connect({store, rank, size, device_, world_rank_, shares_device_});
  return make_torch_connection(
      {store, rank, size, name, device_, plugin_->type, std::move(backend)}, traits_);
}

}  // namespace distgrad
