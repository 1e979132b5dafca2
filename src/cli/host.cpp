#include "cli/host.h"

#include <cstdlib>

#include "model/backends.h"

namespace distgrad {

Host::Host(bool share_gpu) : accelerators_(share_gpu) {
  if (share_gpu) ::setenv(kShareGpuVariable, "1", 1);
}

void Host::answer_for_accelerators(Overrides& overrides) {
  overrides.why_unavailable = [this](const Case& which) {
    return accelerators_.why_unavailable(which);
  };
}

}  // namespace distgrad
