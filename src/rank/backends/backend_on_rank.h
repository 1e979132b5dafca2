// Wraps a backend as one rank uses it: what it needs is loaded, the rank's device is chosen, and
// groups can be connected.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>

#include "rank/backends/backend_traits.h"
#include "rank/backends/connection.h"

namespace distgrad {

struct BackendPlugin;

// Loads the libraries that "nccl on cuda" needs, so that no case's time is spent on that. A failure
// shows in the first case.
void preload(const std::string& transport);

class BackendOnRank {
 public:
  // `backend` is a name of model/backends.h, `device` "cpu" or "cuda". With CUDA the rank takes GPU
  // number rank modulo the number of GPUs and makes it current; such a process must not fork. NCCL
  // refuses several ranks on one GPU unless kShareGpuVariable is set. Throws UnavailableBackend.
  BackendOnRank(const std::string& backend, const std::string& device, int rank, int world_size);

  const std::string& name() const { return name_; }
  at::Device device() const { return device_; }
  const BackendTraits& traits() const { return traits_; }

  // Must be called before the first connection. For the self-test.
  void set_traits(BackendTraits traits) { traits_ = std::move(traits); }

  // Connects like make_torch_connection; only this group uses the store. This must outlive the
  // connection.
  std::unique_ptr<Connection> connect(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                      const std::string& name) const;

 private:
  void take_device(int rank, int world_size);

  std::string name_;
  const BackendPlugin* plugin_ = nullptr;  // null: Gloo, which is linked in
  int world_rank_ = 0;
  bool shares_device_ = false;
  at::Device device_ = at::kCPU;
  BackendTraits traits_;
};

}  // namespace distgrad
