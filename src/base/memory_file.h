// Files that exist in memory alone (memfd) and views of them. They have no name in any file system,
// so nothing is left behind however a process ends.
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

// Views `size` > 0 bytes that can be written and are shared with whoever else maps the file. The
// descriptor may be closed afterwards. Throws SystemError.
MappedMemory map_shared(int fd, std::size_t size);

// From now on the file can be neither written nor resized: a reader cannot be hurt by what the
// writer does later. No writable mapping may exist. Throws SystemError.
void seal(int fd);

// Views a sealed file of at least `size` > 0 bytes read-only. Null, with the reason in `error`,
// when the file is not sealed or too short: reading it could kill this process.
MappedMemory map_sealed(int fd, std::size_t size, std::string* error);

// This process no longer holds these pages of a view that is only read; where they are wanted again
// they come from the file.
void let_go(const void* begin, std::size_t size);

// A file for a process's standard output and error. Once kOutputFileBytes have been written,
// writing more fails: what prints without end must not fill the memory. All descriptors of it share
// one position, also in other processes, which tells how much was written.
inline constexpr std::size_t kOutputFileBytes = 16 << 20;
UniqueFd create_output_file();

// The last `limit` bytes written, at most; empty when they cannot be read.
std::string read_output(int fd, std::size_t limit);

// Begins anew.
void clear_output(int fd);

}  // namespace distgrad
