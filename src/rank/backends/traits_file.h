// Reads the self-test's findings from gloo-traits.json and nccl-traits.json beside the executable.
// The first is written when it is built, the second on a machine with a GPU (distgrad-rank
// --self-test nccl).
#pragma once

#include "rank/backends/backend_traits.h"

namespace distgrad {

// Returns what the self-test of the linked torch found. If the file is missing or of another torch,
// gloo has nothing (everything is composed of sums and gathers, which every torch so far did
// right), and nccl has what its sources say.
BackendTraits read_traits(const std::string& backend);

}  // namespace distgrad
