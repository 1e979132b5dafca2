// Finds the GPUs of this machine, and torch's half that runs on them. Nothing here links CUDA:
// driver and runtime are found at run time, so that the executable starts and works without them.
#pragma once

#include <string>
#include <vector>

namespace distgrad {

struct CudaMachine {
  std::string unavailable;           // one line why no GPU can be used, or empty
  std::vector<std::string> devices;  // their names
  std::string driver;   // the CUDA version of the driver, "13.0"; empty if there is none
  std::string runtime;  // the CUDA version that torch was built with; empty if none
};

// Asks driver and runtime without loading libtorch_cuda, which takes milliseconds without a GPU.
// With one it initialises CUDA, which does not survive a fork, so a process that forks workers must
// not call it.
CudaMachine find_cuda();

// Loads libtorch_cuda into this process, once. Must be called before anything asks torch whether
// there is CUDA; after it tensors may be made on at::kCUDA. Throws UnavailableBackend.
void load_torch_cuda();

// Call it after load_torch_cuda(). Returns 0 without a GPU.
int cuda_device_count();

}  // namespace distgrad
