// Runs `distgrad fuzz --simulate`: a process for each core draws and simulates programs by itself,
// and this watches them.
#pragma once

#include <cstdint>

#include "fuzz/fuzzer.h"

namespace distgrad {

// Runs until count, seconds or an interrupt ends it. It ignores the subjects and interpreters of
// `options`, since it checks the truth itself. Failures are programs that fail, unshrunk, once for
// each rule. Throws SystemError if no process can be made.
FuzzTally simulate_programs(const FuzzOptions& options, FuzzListener& listener);

}  // namespace distgrad
