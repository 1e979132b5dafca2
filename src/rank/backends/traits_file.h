// Where the self-test's findings are kept: gloo-traits.json and nccl-traits.json beside the
// executable. The first is written when it is built, the second on a machine with a GPU
// (distgrad-rank --self-test nccl).
#pragma once

#include "rank/backends/backend_traits.h"

namespace distgrad {

// What the self-test of the linked torch found. Where the file is missing or of another torch: for
// gloo nothing (everything composed of sums and gathers, which the self-test of every torch so far
// found right), for nccl what its sources say.
BackendTraits read_traits(const std::string& backend);

}  // namespace distgrad
