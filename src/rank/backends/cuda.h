// The GPUs of this machine, and torch's half that runs on them. Nothing here links CUDA: the driver
// and the runtime are found at run time, so that the executable starts and works where they are
// missing.
#pragma once

#include <string>
#include <vector>

namespace distgrad {

struct CudaMachine {
  std::string unavailable;           // why no GPU can be used, in a line; empty where one can
  std::vector<std::string> devices;  // their names
  std::string driver;   // the CUDA version of the driver, "13.0"; empty where there is none
  std::string runtime;  // the CUDA version that torch was built with; empty where it has none
};

// Asks driver and runtime, without loading libtorch_cuda: milliseconds where there is no GPU. It
// initialises CUDA where there is one, which does not survive a fork: not for a process that forks
// workers.
CudaMachine find_cuda();

// Loads libtorch_cuda into this process, once; before anything of torch has asked whether there is
// CUDA. After it tensors may be made on at::kCUDA. Throws UnavailableBackend.
void load_torch_cuda();

// After load_torch_cuda(); 0 where there is none.
int cuda_device_count();

}  // namespace distgrad
