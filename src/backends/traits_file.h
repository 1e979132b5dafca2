// Where the self-test's findings are kept: gloo-traits.json beside the executable, written when it is built.
#pragma once

#include "backends/gloo_traits.h"

namespace distgrad {

// What the self-test of the linked torch found; empty (everything composed of sums and gathers, which the self-test of every
// torch so far found right) where the file is missing or of another torch.
GlooTraits read_gloo_traits();

}  // namespace distgrad
