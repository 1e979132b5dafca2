// Files that exist in memory alone (memfd) and views of them. They have no name in any file system, so nothing is left
// behind however a process ends.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace distgrad {

// An empty file, closed on exec. Throws SystemError.
UniqueFd create_memory_file(const char* name);

// Unmaps when the last owner goes.
using MappedMemory = std::shared_ptr<std::byte>;

// Views `size` > 0 bytes that can be written and are shared with whoever else maps the file. The descriptor may be closed
// afterwards. Throws SystemError.
MappedMemory map_shared(int fd, std::size_t size);

// From now on the file can be neither written nor resized: a reader cannot be hurt by what the writer does later.
// No writable mapping may exist. Throws SystemError.
void seal(int fd);

// Views a sealed file of at least `size` > 0 bytes read-only. Null, with the reason in `error`, when the file is not
// sealed or too short: reading it could kill this process.
MappedMemory map_sealed(int fd, std::size_t size, std::string* error);

// The last `limit` bytes of the file at most; empty when it cannot be read.
std::string read_tail(int fd, std::size_t limit);

}  // namespace distgrad
