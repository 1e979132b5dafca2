// Runs a program to its end and keeps what it writes: for short questions.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/child_process.h"

namespace distgrad {

struct CapturedChild {
  int wait_status = 0;
  std::string text;        // standard output and error
  bool timed_out = false;  // it was killed, as it took too long or nobody waits for it any more

  bool ok() const { return wait_status == 0 && !timed_out; }
};

// `goes_on(seconds)` is called now and then while the child runs; where it says no the child is
// killed.
CapturedChild run_captured(ChildCommand command, int timeout_s,
                           const std::function<bool(double)>& goes_on = {});

}  // namespace distgrad
