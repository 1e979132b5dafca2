// Reads files that others name, without waiting for anybody.
#pragma once

#include <cstddef>
#include <string>

namespace distgrad {

struct FileContent {
  std::string text;
  std::string
      problem;  // says why there is no text: "cannot be read: ...", "is a folder", ...; else empty
  int error = 0;  // errno where the system refused; else 0
};

// Reads only regular files of real file systems, at most `limit` bytes; anything else is a problem.
// A pipe may never say anything, a device may never end, and a file that the kernel makes up
// (/proc, /sys) may do either.
FileContent read_regular_file(const std::string& path, std::size_t limit);

}  // namespace distgrad
