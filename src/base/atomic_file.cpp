#include "base/atomic_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/unique_fd.h"
#include "base/visible_text.h"

namespace distgrad {
namespace {

[[noreturn]] void fail(const std::string& path, int error) {
  throw UserError("cannot write " + path + ": " + std::strerror(error));
}

// Returns 0 or the errno.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

void write_directly(const std::string& path, std::string_view text) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd) fail(path, errno);
  if (const int error = write_all(fd.get(), text)) fail(path, error);
}

// Returns the mode that the file has now, or else what a new file would get, because mkstemp's 0600
// would keep CI's next user from reading it.
mode_t mode_for(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return status.st_mode & 07777;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

void write_beside_and_rename(const std::string& path, std::string_view text) {
  const mode_t mode = mode_for(path);
  std::string temporary = path + ".XXXXXX";
  UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) fail(path, errno);
  int error = write_all(fd.get(), text);
  if (error == 0 && ::fchmod(fd.get(), mode) != 0) error = errno;
  if (error == 0 && ::close(fd.release()) != 0)
    error = errno;  // a full disk may first be noticed here
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return;
  ::unlink(temporary.c_str());
  fail(path, error);
}

}  // namespace

void write_file_atomically(const std::string& path, std::string_view text) {
  if (path == "-") {
    const int error = write_all(STDOUT_FILENO, without_commands(text));
    if (error != 0) fail("standard output", error);
    return;
  }
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  if (type == std::filesystem::file_type::directory) fail(path, EISDIR);
  if (type != std::filesystem::file_type::regular && type != std::filesystem::file_type::not_found)
    return write_directly(path, text);
  const auto real = std::filesystem::weakly_canonical(path, ignored);
  write_beside_and_rename(real.empty() ? path : real.string(), text);
}

}  // namespace distgrad
