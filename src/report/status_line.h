// Shows on one terminal line how far a long run is: cases done, how many are not as expected, the
// time left. It appears after a second, is rewritten in place, and leaves nothing behind.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace distgrad {

// Returns "412/2000 cases, 3 not as expected, about 20 s left". The time left is missing while
// nothing is done.
std::string status_text(std::size_t done, std::size_t total, std::size_t failed, double elapsed_s);

// Returns "importing losses.py, 12 s", since the user's own code takes its time.
std::string importing_text(const std::string& what, double seconds);

class StatusLine {
 public:
  // Writes to `fd` if `enabled` (the caller checks whether it is a terminal).
  StatusLine(int fd, bool enabled, std::size_t total);
  ~StatusLine() { erase(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  void expect(std::size_t total) { total_ = total; }  // cases, if that was unknown
  void update(std::size_t done, std::size_t failed);
  void say(const std::string& text);  // until the next update
  void erase();                       // call it before anything else is written to the terminal

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
