#include "base/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "base/failed_call.h"
#include "base/whole_pages.h"

namespace distgrad {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

MappedMemory map(int fd, std::size_t size, int protection, int flags) {
  void* memory = mmap(nullptr, size, protection, flags, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(memory), [size](std::byte* p) { munmap(p, size); }};
}

}  // namespace

UniqueFd create_memory_file(const char* name) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw failed_call("memfd_create");
  return fd;
}

MappedMemory map_shared(int fd, std::size_t size) {
  MappedMemory memory = map(fd, size, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!memory) throw failed_call("mmap");
  return memory;
}

void seal(int fd) {
  if (fcntl(fd, F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) throw failed_call("fcntl(F_ADD_SEALS)");
}

MappedMemory map_sealed(int fd, std::size_t size, std::string* error) {
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat file {};
  if (seals < 0 || (seals & kSeals) != kSeals) {
    *error = "shared memory is not sealed";
  } else if (fstat(fd, &file) != 0 || static_cast<std::size_t>(file.st_size) < size) {
    *error = "shared memory is shorter than announced";
  } else if (MappedMemory memory = map(fd, size, PROT_READ, MAP_PRIVATE)) {
    // Kernels before 6.7 refuse to share a file sealed against writing, even read-only.
    return memory;
  } else {
    *error = std::string("mmap: ") + std::strerror(errno);
  }
  return nullptr;
}

void let_go(const void* begin, std::size_t size) {
  const std::span<std::byte> pages = whole_pages(begin, size);
  if (!pages.empty()) madvise(pages.data(), pages.size(), MADV_DONTNEED);
}

UniqueFd create_output_file() {
  UniqueFd fd = create_memory_file("distgrad-output");
  // The file has its full size from the start, which costs nothing, and cannot grow.
  if (ftruncate(fd.get(), kOutputFileBytes) != 0) throw failed_call("ftruncate");
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
    throw failed_call("fcntl(F_ADD_SEALS)");
  return fd;
}

std::string read_output(int fd, std::size_t limit) {
  const off_t written = lseek(fd, 0, SEEK_CUR);
  if (written <= 0) return {};
  const std::size_t size = std::min(limit, static_cast<std::size_t>(written));
  std::string text(size, '\0');
  const ssize_t n = pread(fd, text.data(), size, written - static_cast<off_t>(size));
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return text;
}

void clear_output(int fd) {
  constexpr off_t kWorthFreeing = 1 << 20;
  const off_t written = lseek(fd, 0, SEEK_CUR);
  lseek(fd, 0, SEEK_SET);
  if (written > kWorthFreeing)
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, written);
}

}  // namespace distgrad
