// Makes a Connection over any backend of c10d.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <memory>
#include <string>

#include "rank/backends/backend_traits.h"
#include "rank/backends/connection.h"

namespace distgrad {

c10d::ReduceOp torch_op(ReduceOp op);

// Describes one rank's end of one group, in torch's terms.
struct TorchEnd {
  c10::intrusive_ptr<c10d::Store> store;  // this group's alone
  int rank = 0;                           // in the group
  int size = 1;
  std::string name;              // for torch, the same on all ranks of the group
  at::Device device = at::kCPU;  // where its tensors are
  c10d::ProcessGroup::BackendType type = c10d::ProcessGroup::BackendType::GLOO;
  c10::intrusive_ptr<c10d::Backend> backend;  // connected
};

// `traits` is not copied and must outlive the connection.
std::unique_ptr<Connection> make_torch_connection(TorchEnd end, const BackendTraits& traits);

}  // namespace distgrad
