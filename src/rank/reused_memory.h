// Memory of large tensors that is used again within one request. The kernel clears every page that
// a process touches first, which takes longer than most arithmetic on it, and glibc gives large
// blocks back as soon as they are freed.
#pragma once

#include <cstddef>

namespace distgrad {

// Blocks of at least so many bytes are kept; of smaller ones glibc keeps enough.
inline constexpr std::size_t kLargeBlock = std::size_t{1} << 20;

// While one lives, large blocks that are freed are kept for tensors of the same size: never more
// than makes all blocks together as large as they were at some time of this life, so that nothing
// takes more memory than without. One at a time in a process; tensors may outlive it.
class ReusedMemory {
 public:
  ReusedMemory();
  ~ReusedMemory();
  ReusedMemory(const ReusedMemory&) = delete;
  ReusedMemory& operator=(const ReusedMemory&) = delete;

  static std::size_t kept_bytes();
};

}  // namespace distgrad
