// Makes files that exist in memory alone (memfd), and views of them. They have no name in any file
// system, so nothing is left behind however a process ends.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace distgrad {

// Makes an empty file that closes on exec. Throws SystemError.
UniqueFd create_memory_file(const char* name);

// Unmaps when the last owner goes.
using MappedMemory = std::shared_ptr<std::byte>;

// Views `size` > 0 bytes for reading and writing, shared with whoever else maps the file. The
// descriptor may be closed afterwards. Throws SystemError.
MappedMemory map_shared(int fd, std::size_t size);

// Makes the file impossible to write or resize from now on, so that a reader cannot be hurt by what
// the writer does later. No writable mapping may exist. Throws SystemError.
void seal(int fd);

// Views a sealed file of at least `size` > 0 bytes read-only. Returns null, with the reason in
// `error`, if the file is not sealed or too short, as reading it could kill this process.
MappedMemory map_sealed(int fd, std::size_t size, std::string* error);

// Releases these pages of a read-only view. They come from the file again when they are read.
void let_go(const void* begin, std::size_t size);

// Makes a file for a process's standard output and error. Writing beyond kOutputFileBytes fails, so
// that endless output does not fill the memory. All its descriptors, in other processes too, share
// one position, which tells how much was written.
inline constexpr std::size_t kOutputFileBytes = 16 << 20;
UniqueFd create_output_file();

// Returns the last `limit` bytes written, at most; empty when they cannot be read.
std::string read_output(int fd, std::size_t limit);

// Sets the position back to the start, so that writing begins anew.
void clear_output(int fd);

}  // namespace distgrad
