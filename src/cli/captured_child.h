// Runs a program to its end and keeps what it writes: for `doctor`, which asks short questions.
#pragma once

#include <string>
#include <vector>

#include "base/child_process.h"

namespace distgrad {

struct CapturedChild {
  int wait_status = 0;
  std::string text;        // standard output and error
  bool timed_out = false;  // it was killed

  bool ok() const { return wait_status == 0 && !timed_out; }
};

CapturedChild run_captured(ChildCommand command, int timeout_s);

}  // namespace distgrad
