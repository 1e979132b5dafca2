// Reads the clock that all processes of a run share.
#pragma once

#include <time.h>

#include <cstdint>

namespace distgrad {

// Reads CLOCK_MONOTONIC, whose values can be compared between processes of one machine.
inline std::int64_t monotonic_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

}  // namespace distgrad
