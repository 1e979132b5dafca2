// What distgrad is measured against: the same work with nothing around it.
#pragma once

#include <cstdint>

namespace distgrad::bench {

// `count` times pytorch#58005's program, forward and backward, by forked ranks that only issue the
// Gloo calls: one all_reduce of the operand, one of the cotangent, of `elements` float64. Returns
// the seconds of the slowest rank, without fork and connect. `peak_kib` (may be null): the largest
// peak resident size of a rank.
double bare_gloo_seconds(int ranks, int count, std::int64_t elements, long* peak_kib);

}  // namespace distgrad::bench
