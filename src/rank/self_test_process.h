// `distgrad-rank --self-test`: forks the ranks of the backend's self-test and prints its findings as JSON.
#pragma once

namespace distgrad {

// The exit code. Must be called before anything of torch started a thread.
int run_self_test();

}  // namespace distgrad
