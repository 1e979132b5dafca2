// Defines the two exception types of distgrad. All else (a mismatch, a hang, a dead rank, a skipped
// case) is a value. Both are caught once, in main, and become an exit code.
#pragma once

#include <stdexcept>
#include <string>

namespace distgrad {

// Says what is wrong with the user's input, in one line: where, what, and what was probably meant.
// Exit code 2.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Says what the machine failed at: a system call, a missing executable, a worker that cannot start.
// Exit code 3.
class SystemError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace distgrad
