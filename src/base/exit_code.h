// Lists the exit codes that docs/command-line.md promises.
#pragma once

namespace distgrad {

enum class ExitCode : int {
  kAsExpected = 0,
  kNotAsExpected = 1,
  kUserError = 2,
  kBroken = 3,
  kNothingRan = 4,
  kInterrupted = 130,
  kTerminated = 143,
};

}  // namespace distgrad
