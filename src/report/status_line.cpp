#include "report/status_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "report/words.h"

namespace distgrad {
namespace {

constexpr std::chrono::milliseconds kAppearsAfter{1000};
constexpr std::chrono::milliseconds kBetween{100};

std::size_t columns_of(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// A status line that cannot be written is no reason to stop.
void write_text(int fd, const std::string& text) {
  [[maybe_unused]] const ssize_t n = ::write(fd, text.data(), text.size());
}

}  // namespace

std::string status_text(std::size_t done, std::size_t total, std::size_t failed, double elapsed_s) {
  std::string text = fmt::format("{}/{} cases", done, total);
  if (failed > 0) text += fmt::format(", {} not as expected", failed);
  if (done == 0 || done >= total) return text;
  const double left = elapsed_s / static_cast<double>(done) * static_cast<double>(total - done);
  return text + ", about " + seconds_text(std::max(1.0, left)) + " left";
}

std::string importing_text(const std::string& what, double seconds) {
  return fmt::format("importing {}, {} s", on_one_line(what), static_cast<long>(seconds));
}

StatusLine::StatusLine(int fd, bool enabled, std::size_t total)
    : fd_(fd), enabled_(enabled), total_(total) {}

void StatusLine::update(std::size_t done, std::size_t failed) {
  const auto now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - started_).count();
  show(status_text(done, total_, failed, elapsed), now);
}

void StatusLine::say(const std::string& text) { show(text, Clock::now()); }

void StatusLine::show(const std::string& text, Clock::time_point now) {
  if (!enabled_ || now - started_ < kAppearsAfter || now - written_ < kBetween) return;
  written_ = now;
  visible_ = true;
  write_text(fd_, "\r" + text.substr(0, columns_of(fd_) - 1) + "\033[K");
}

void StatusLine::erase() {
  if (!visible_) return;
  write_text(fd_, "\r\033[K");
  visible_ = false;
  written_ = {};
}

}  // namespace distgrad
