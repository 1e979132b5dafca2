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

// "importing losses.py, 12 s": the user's own code takes its time.
std::string importing_text(const std::string& what, double seconds);

class StatusLine {
 public:
  // Writes to `fd` where `enabled` (the caller looks whether it is a terminal).
  StatusLine(int fd, bool enabled, std::size_t total);
  ~StatusLine() { erase(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  void expect(std::size_t total) { total_ = total; }  // cases, where that was not known
  void update(std::size_t done, std::size_t failed);
  void say(const std::string& text);  // until the next update
  void erase();                       // before anything else is written to the terminal

 private:
  using Clock = std::chrono::steady_clock;

  void show(const std::string& text, Clock::time_point now);

  int fd_;
  bool enabled_;
  bool visible_ = false;
  std::size_t total_;
  Clock::time_point started_ = Clock::now();
  Clock::time_point written_{};
};

}  // namespace distgrad
