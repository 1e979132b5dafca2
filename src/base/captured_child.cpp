#include "base/captured_child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/unique_fd.h"

namespace distgrad {

CapturedChild run_captured(ChildCommand command, int timeout_s,
                           const std::function<bool(double)>& goes_on) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw SystemError(std::string("cannot make a pipe: ") + std::strerror(errno));
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  command.output_fd = writing.get();
  const pid_t child = start_child(command);
  writing.reset();
  const std::int64_t started = monotonic_ns(),
                     deadline = started + std::int64_t{timeout_s} * 1'000'000'000;
  CapturedChild result;
  for (;;) {
    constexpr std::int64_t kLookMs = 100;
    const std::int64_t now = monotonic_ns(), left_ms = (deadline - now) / 1'000'000;
    if (left_ms <= 0 || (goes_on && !goes_on(static_cast<double>(now - started) * 1e-9))) {
      result.timed_out = true;
      ::kill(-child, SIGKILL);  // a negative id means the group, which the child leads
      break;
    }
    pollfd waiting{reading.get(), POLLIN, 0};
    const std::int64_t wait_ms = goes_on ? std::min(left_ms, kLookMs) : left_ms;
    if (::poll(&waiting, 1, static_cast<int>(wait_ms)) <= 0) continue;
    std::array<char, 4096> buffer{};
    const ssize_t n = ::read(reading.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    result.text.append(buffer.data(), static_cast<std::size_t>(n));
  }
  while (::waitpid(child, &result.wait_status, 0) < 0 && errno == EINTR) {
  }
  forget_child(child);
  return result;
}

}  // namespace distgrad
