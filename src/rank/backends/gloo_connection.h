// Makes a Connection over c10d's Gloo.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

#include "rank/backends/torch_connection.h"

namespace distgrad {

// Connects at once, which blocks for the other ranks. `name` is the group's name for torch, the
// same on all its ranks. Tensors are on `device`: c10d copies those of a GPU through the host's
// memory, and needs libtorch_cuda loaded before.
std::unique_ptr<Connection> make_gloo_connection(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                 int size, const std::string& name,
                                                 const BackendTraits& traits,
                                                 at::Device device = at::kCPU);

}  // namespace distgrad
