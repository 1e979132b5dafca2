// Runs every primitive of a backend on small data whose results are known, NaN included, and says
// which are right. What is wrong is composed from what is right.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "rank/backends/backend_traits.h"
#include "rank/backends/connection.h"

namespace distgrad {

// All ranks of the connection's group call it, two to four; every rank gets the same answer. The
// connection's own traits must be `untested`, so that nothing is composed.
BackendTraits self_test(Connection& connection);

// Tests the Gloo inside the linked torch likewise. Each of kSelfTestRanks ranks calls it.
BackendTraits self_test(c10::intrusive_ptr<c10d::Store> store, int rank);

inline constexpr int kSelfTestRanks = 3;

// The linked torch's version, as torch.__version__ without its local part.
std::string torch_version();

std::string to_json(const BackendTraits&, const std::string& backend);

}  // namespace distgrad
