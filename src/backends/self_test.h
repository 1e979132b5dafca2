// Runs every primitive of the Gloo inside the linked torch on small data whose results are known, NaN included, and says which are
// right. What is wrong is composed from what is right.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "backends/gloo_traits.h"

namespace distgrad {

// One of three ranks that all call it; every rank gets the same answer.
GlooTraits self_test(c10::intrusive_ptr<c10d::Store> store, int rank);

inline constexpr int kSelfTestRanks = 3;

// The linked torch's version, as torch.__version__ without its local part.
std::string torch_version();

std::string to_json(const GlooTraits&);

}  // namespace distgrad
