// `distgrad-rank --probe` tells the driver which GPUs and which backends in shared libraries can be
// used here.
#pragma once

namespace distgrad {

// kQuick loads a library only where it could run. kLoad always does, to report what is wrong with
// it.
enum class Thoroughness { kQuick, kLoad };

// Prints one JSON object, which probe_accelerators (cli/accelerators.cpp) reads:
//   "torch": version; "cuda": "unavailable", "devices", "driver", "runtime";
//   "nccl": "library", "traits" ("self-test" or "sources"), "version", "device", "unavailable".
// "unavailable" is why it cannot be used, or "". "version" is there only if the library was loaded.
// Returns the exit code: 0, whatever is found.
int run_probe(Thoroughness);

}  // namespace distgrad
