// Reads files that may vanish or change while they are read, such as those of /proc.
#pragma once

#include <cstddef>
#include <string>

namespace distgrad {

// Returns the first `limit` bytes, or all there are. Empty where the file is gone, ends with its
// process (ESRCH, at which a stream would throw), or is no regular file. Never waits, never throws.
std::string beginning_of(const std::string& path, std::size_t limit);

}  // namespace distgrad
