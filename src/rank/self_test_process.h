// `distgrad-rank --self-test [BACKEND]` forks the ranks of the backend's self-test and prints its
// findings as JSON.
#pragma once

#include <string>

namespace distgrad {

// Returns the exit code. Must be called before torch has started a thread or used CUDA.
int run_self_test(const std::string& backend);

}  // namespace distgrad
