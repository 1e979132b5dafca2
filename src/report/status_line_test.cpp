#include "report/status_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <thread>

namespace distgrad {
namespace {

using testing::EndsWith;
using testing::StartsWith;

TEST(StatusLine, SaysHowFarAndHowLong) {
  EXPECT_EQ(status_text(0, 40, 0, 2), "0/40 cases");
  EXPECT_EQ(status_text(10, 40, 0, 2), "10/40 cases, about 6.0 s left");
  EXPECT_EQ(status_text(10, 40, 3, 60), "10/40 cases, 3 not as expected, about 3 min 0 s left");
  EXPECT_EQ(status_text(40, 40, 0, 2), "40/40 cases");
}

std::string read_all(int fd) {
  std::array<char, 4096> buffer{};
  const ssize_t n = ::read(fd, buffer.data(), buffer.size());
  return {buffer.data(), static_cast<std::size_t>(n < 0 ? 0 : n)};
}

TEST(StatusLine, ShortRunsAndFilesSeeNothingAndLongOnesAreLeftClean) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  {
    StatusLine disabled(fds[1], false, 4);
    StatusLine line(fds[1], true, 4);
    line.update(1, 0);
    line.erase();
    ASSERT_EQ(::write(fds[1], "|", 1), 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1010));
    disabled.update(2, 0);
    line.update(2, 0);
  }
  ::close(fds[1]);
  const std::string written = read_all(fds[0]);
  ::close(fds[0]);
  // A busy machine may sleep for longer.
  EXPECT_THAT(written, StartsWith("|\r2/4 cases, about "));
  EXPECT_THAT(written, EndsWith(" s left\033[K\r\033[K"));
}

}  // namespace
}  // namespace distgrad
