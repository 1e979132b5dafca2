#include "dumps/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/unique_fd.h"
#include "report/words.h"

namespace distgrad::dumps {

MappedFile map_file(const std::string& path) {
  const std::string shown = for_terminal(path);
  const auto fail = [&](int error) -> UserError {
    return UserError(shown + ": cannot be read: " + std::strerror(error));
  };
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) throw fail(errno);
  if (!S_ISREG(status.st_mode)) throw UserError(shown + ": is not a file");
  MappedFile file;
  file.size = static_cast<std::size_t>(status.st_size);
  if (file.size == 0) return file;
  void* const memory = ::mmap(nullptr, file.size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) throw fail(errno);
  ::madvise(memory, file.size, MADV_SEQUENTIAL);
  file.data = {static_cast<const std::byte*>(memory), [size = file.size](const std::byte* p) {
                 ::munmap(const_cast<std::byte*>(p), size);
               }};
  return file;
}

}  // namespace distgrad::dumps
