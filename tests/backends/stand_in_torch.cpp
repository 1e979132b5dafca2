// The torch that a stand-in says it was built with: this one, or STAND_IN_TORCH.
#include <torch/csrc/api/include/torch/version.h>

#ifndef STAND_IN_TORCH
#define STAND_IN_TORCH TORCH_VERSION
#endif

namespace distgrad {
extern const char* const kStandInTorch;
const char* const kStandInTorch = STAND_IN_TORCH;
}  // namespace distgrad
