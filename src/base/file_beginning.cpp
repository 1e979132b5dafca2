#include "base/file_beginning.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace distgrad {

std::string beginning_of(const std::string& path, std::size_t limit) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat file {};
  if (!fd || fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode)) return {};
  std::string text(limit, '\0');
  std::size_t size = 0;
  while (size < limit) {
    const ssize_t n = read(fd.get(), text.data() + size, limit - size);
    if (n <= 0) break;
    size += static_cast<std::size_t>(n);
  }
  text.resize(size);
  return text;
}

}  // namespace distgrad
