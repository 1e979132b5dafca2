// Connects one rank of one group over c10d's Gloo, on the interface that meeting.h names.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace distgrad {

// Blocks until every rank of the group has called it with the same store (with a prefix for this
// group).
c10::intrusive_ptr<c10d::Backend> connect_gloo(c10::intrusive_ptr<c10d::Store> store, int rank,
                                               int size);

}  // namespace distgrad
