#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace distgrad {

std::size_t terminal_width(std::size_t otherwise) {
  constexpr std::size_t kLeast = 60, kMost = 200;
  winsize size{};
  if (::isatty(STDOUT_FILENO) != 1 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 ||
      size.ws_col == 0)
    return otherwise;
  return std::clamp<std::size_t>(size.ws_col, kLeast, kMost);
}

}  // namespace distgrad
