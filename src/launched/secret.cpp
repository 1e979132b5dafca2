#include "launched/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/unique_fd.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "DISTGRAD_SECRET";
constexpr std::size_t kShortest = 16;
constexpr std::size_t kBytes = 32;

fs::path secret_file() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state && *state == '/')
    return fs::path(state) / "distgrad/secret";
  if (const char* home = std::getenv("HOME"); home && *home == '/')
    return fs::path(home) / ".local/state/distgrad/secret";
  throw UserError(
      "ranks on other hosts are to prove that they belong to this job, and there is no home to "
      "keep a secret in: set DISTGRAD_SECRET to the same secret for all of them");
}

[[noreturn]] void refuse(const fs::path& file, const std::string& why) {
  throw UserError(
      fmt::format("{} is to hold the secret by which ranks know each other, and {}; or set "
                  "DISTGRAD_SECRET to the same secret for all of them",
                  file.string(), why));
}

// Returns the secret in the file; empty where there is no file. Throws UserError where others can
// read it or it is too short.
std::string content(const fs::path& file) {
  const UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && errno == ENOENT) return {};
  if (!fd) refuse(file, std::strerror(errno));
  struct stat status {};
  if (fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) refuse(file, "is no file");
  if (status.st_uid != geteuid() || (status.st_mode & 077) != 0)
    refuse(file, "others can read it: chmod 600");
  std::string text(4096, '\0');
  const ssize_t n = ::read(fd.get(), text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  if (text.size() < kShortest) refuse(file, "is too short");
  return text;
}

// Writes under another name and then links it, so that whoever finds the file finds all of it. If
// several processes do so, the first one's file stays.
void make(const fs::path& file) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  const std::string draft = fmt::format("{}.{}.{}", file.string(), getpid(), random_digits(4));
  const UniqueFd fd(open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) refuse(file, fmt::format("it cannot be written: {}", std::strerror(errno)));
  const std::string text = random_digits(kBytes) + "\n";
  const bool written =
      write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fsync(fd.get()) == 0;
  const bool linked = written && (link(draft.c_str(), file.c_str()) == 0 || errno == EEXIST);
  const int reason = errno;
  unlink(draft.c_str());
  if (!linked) refuse(file, fmt::format("it cannot be written: {}", std::strerror(reason)));
}

}  // namespace

std::string random_digits(std::size_t bytes) {
  std::string text;
  while (bytes-- > 0) {
    unsigned char byte = 0;
    if (getrandom(&byte, 1, 0) != 1)
      throw SystemError(std::string("getrandom: ") + std::strerror(errno));
    text += fmt::format("{:02x}", byte);
  }
  return text;
}

std::string shared_secret() {
  if (const char* given = std::getenv(kVariable); given && *given) {
    if (std::strlen(given) < kShortest)
      throw UserError(fmt::format("{} is too short to be a secret: {} characters at least",
                                  kVariable, kShortest));
    return given;
  }
  const fs::path file = secret_file();
  if (std::string secret = content(file); !secret.empty()) return secret;
  make(file);
  return content(file);
}

}  // namespace distgrad
