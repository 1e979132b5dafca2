// Files that others name: read without waiting for anybody.
#pragma once

#include <cstddef>
#include <string>

namespace distgrad {

struct FileContent {
  std::string text;
  std::string
      problem;    // why there is no text: "cannot be read: ...", "is a folder", ...; else empty
  int error = 0;  // errno, where the system refused
};

// Only a regular file of a real file system has content: a pipe may never say anything, a device
// never end, and what the kernel makes up (/proc, /sys) may do either. At most `limit` bytes; a
// larger file has a problem.
FileContent read_regular_file(const std::string& path, std::size_t limit);

}  // namespace distgrad
