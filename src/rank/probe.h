// `distgrad-rank --probe`: what of GPUs and of backends in shared libraries can be used here, for
// the driver.
#pragma once

namespace distgrad {

// kQuick: a library is loaded only where it could run. kLoad: always, so that what is wrong with it
// is reported anyway.
enum class Thoroughness { kQuick, kLoad };

// Prints one JSON object, which probe_accelerators (cli/accelerators.cpp) reads:
//   "torch": version; "cuda": "unavailable", "devices", "driver", "runtime";
//   "nccl": "library", "traits" ("self-test" or "sources"), "version", "device", "unavailable".
// "unavailable" is why it cannot be used, or "". "version" is there only if the library was loaded.
// Returns the exit code: 0, whatever is found.
int run_probe(Thoroughness);

}  // namespace distgrad
