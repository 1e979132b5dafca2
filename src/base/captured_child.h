// Runs a program to its end and keeps what it writes; meant for short questions.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/child_process.h"

namespace distgrad {

struct CapturedChild {
  int wait_status = 0;
  std::string text;        // what it wrote to standard output and error
  bool timed_out = false;  // it was killed, as it took too long or goes_on said no

  bool ok() const { return wait_status == 0 && !timed_out; }
};

// Calls `goes_on(seconds)` at least every 0.1 s while the child runs, and kills the child once it
// returns false. Throws SystemError.
CapturedChild run_captured(ChildCommand command, int timeout_s,
                           const std::function<bool(double)>& goes_on = {});

}  // namespace distgrad
