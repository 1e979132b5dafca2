#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "base/whole_number.h"

namespace distgrad {

namespace {

constexpr std::size_t kLeast = 60, kMost = 200;

std::optional<std::size_t> columns_asked_for() {
  const char* text = std::getenv("COLUMNS");
  const auto columns = whole_number<std::size_t>(text ? text : "");
  return columns && *columns > 0 ? columns : std::nullopt;
}

}  // namespace

std::size_t terminal_width(std::size_t otherwise) {
  if (const auto columns = columns_asked_for()) return std::clamp(*columns, kLeast, kMost);
  winsize size{};
  if (::isatty(STDOUT_FILENO) != 1 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 ||
      size.ws_col == 0)
    return otherwise;
  return std::clamp<std::size_t>(size.ws_col, kLeast, kMost);
}

}  // namespace distgrad
