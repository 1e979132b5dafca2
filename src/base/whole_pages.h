// Finds what madvise and its like take of a piece of memory.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace distgrad {

inline std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

// Returns the pages that lie fully inside the piece; empty where there is none.
inline std::span<std::byte> whole_pages(const void* begin, std::size_t size) {
  const std::uintptr_t page = page_bytes(), start = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t first = (start + page - 1) / page * page,
                       last = (start + size) / page * page;
  if (first >= last) return {};
  return {reinterpret_cast<std::byte*>(first), last - first};
}

}  // namespace distgrad
