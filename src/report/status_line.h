// One line on a terminal that says how far a long run is: cases done, how many are not as expected,
// the time left. Appears after a second, is rewritten in place, and leaves nothing behind.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace distgrad {

// "412/2000 cases, 3 not as expected, about 20 s left". The time left is left out while nothing is
// done.
std::string status_text(std::size_t done, std::size_t total, std::size_t failed, double elapsed_s);

class StatusLine {
 public:
  // Writes to `fd` where `enabled` (the caller looks whether it is a terminal).
  StatusLine(int fd, bool enabled, std::size_t total);
  ~StatusLine() { erase(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  void update(std::size_t done, std::size_t failed);
  void erase();  // before anything else is written to the terminal

 private:
  using Clock = std::chrono::steady_clock;

  int fd_;
  bool enabled_;
  bool visible_ = false;
  std::size_t total_;
  Clock::time_point started_ = Clock::now();
  Clock::time_point written_{};
};

}  // namespace distgrad
