// `distgrad-rank --probe`: what of GPUs and of backends in shared libraries can be used here, for
// the driver.
#pragma once

namespace distgrad {

// kQuick: a library is loaded only where it could run. kLoad: always, so that what is wrong with it
// is reported anyway.
enum class Thoroughness { kQuick, kLoad };

// Prints one JSON object; docs/backends.md. The exit code: 0, whatever is found.
int run_probe(Thoroughness);

}  // namespace distgrad
