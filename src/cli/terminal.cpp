#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace distgrad {

namespace {

constexpr std::size_t kLeast = 60, kMost = 200;

std::optional<std::size_t> columns_asked_for() {
  const char* text = std::getenv("COLUMNS");
  const std::string_view digits = text ? text : "";
  std::size_t columns = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), columns);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size();
  return is_number && columns > 0 ? std::optional(columns) : std::nullopt;
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
