// Measures what distgrad is compared with: the same work with nothing around it.
#pragma once

#include <cstdint>

namespace distgrad::bench {

// Runs pytorch#58005's program `count` times, forward and backward, on forked ranks that only issue
// the Gloo calls: one all_reduce of the operand and one of the cotangent, of `elements` float64
// each. Returns the seconds of the slowest rank, without fork and connect. `peak_kib` (may be null)
// gets the largest peak resident size of a rank, in KiB.
double bare_gloo_seconds(int ranks, int count, std::int64_t elements, long* peak_kib);

}  // namespace distgrad::bench
