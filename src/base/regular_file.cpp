#include "base/regular_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/unique_fd.h"

namespace distgrad {
namespace {

FileContent refused(std::string problem) { return {"", std::move(problem), 0}; }

FileContent failed(int error) {
  return {"", std::string("cannot be read: ") + std::strerror(error), error};
}

bool is_made_up(int fd) {
  struct statfs system {};
  if (fstatfs(fd, &system) != 0) return false;
  constexpr decltype(system.f_type) kMadeUp[] = {PROC_SUPER_MAGIC, SYSFS_MAGIC, DEBUGFS_MAGIC,
                                                 TRACEFS_MAGIC};
  return std::find(std::begin(kMadeUp), std::end(kMadeUp), system.f_type) != std::end(kMadeUp);
}

}  // namespace

FileContent read_regular_file(const std::string& path, std::size_t limit) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file) return failed(errno);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return failed(errno);
  if (S_ISDIR(status.st_mode)) return refused("is a folder");
  if (!S_ISREG(status.st_mode) || is_made_up(file.get())) return refused("is no regular file");
  const std::string too_large = "the file is larger than " + std::to_string(limit >> 20) + " MiB";
  if (static_cast<std::size_t>(status.st_size) > limit) return refused(too_large);
  FileContent content;
  std::string buffer(1 << 16, '\0');
  for (;;) {
    const ssize_t n = read(file.get(), buffer.data(), buffer.size());
    if (n == 0) return content;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(errno);
    content.text.append(buffer.data(), static_cast<std::size_t>(n));
    if (content.text.size() > limit) return refused(too_large);  // the file grew meanwhile
  }
}

}  // namespace distgrad
