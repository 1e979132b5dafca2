// Reuses the memory of large tensors within one request. The kernel clears every page that a
// process touches first, which takes longer than most arithmetic on it, and glibc gives large
// blocks back as soon as they are freed.
#pragma once

#include <cstddef>

namespace distgrad {

// Blocks of at least this many bytes are kept; glibc keeps enough of smaller ones.
inline constexpr std::size_t kLargeBlock = std::size_t{1} << 20;

// Keeps large blocks that are freed during its life for tensors of the same size. It never keeps
// more than makes all blocks together as large as they once were in this life, so it never takes
// more memory than a run without it. At most one may live in a process; tensors may outlive it.
class ReusedMemory {
 public:
  ReusedMemory();
  ~ReusedMemory();
  ReusedMemory(const ReusedMemory&) = delete;
  ReusedMemory& operator=(const ReusedMemory&) = delete;

  static std::size_t kept_bytes();
};

}  // namespace distgrad
