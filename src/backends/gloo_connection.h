// A Connection over c10d's Gloo.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <memory>

#include "backends/connection.h"
#include "backends/gloo_traits.h"

namespace distgrad {

c10d::ReduceOp torch_op(ReduceOp op);

// Connects at once (blocks for the other ranks); `name` is the group's name for torch, the same on all its ranks.
std::unique_ptr<Connection> make_gloo_connection(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                 const std::string& name, const GlooTraits& traits);

}  // namespace distgrad
