// The two exception types of distgrad. Everything else (a mismatch, a hang, a rank that died, a
// skipped case) is a value. Both are caught once, in main, and become an exit code.
#pragma once

#include <stdexcept>
#include <string>

namespace distgrad {

// What the user gave us is wrong: one line saying where, what and what was probably meant. Exit
// code 2.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The machine failed us: a system call, a missing executable, a worker that cannot start. Exit
// code 3.
class SystemError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace distgrad
