// `distgrad fuzz --simulate`: a process for each core draws and simulates programs by itself; this
// watches them.
#pragma once

#include <cstdint>

#include "fuzz/fuzzer.h"

namespace distgrad {

// Until count, seconds or an interrupt ends it. Of `options`, subjects and interpreters play no
// part: what is checked is the truth itself. Failures are programs that fail, unshrunk,
// once for each rule. Throws SystemError where no process can be had.
FuzzTally simulate_programs(const FuzzOptions& options, FuzzListener& listener);

}  // namespace distgrad
