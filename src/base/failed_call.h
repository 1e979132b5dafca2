// Says what a system call failed with, and what helps.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace distgrad {

inline constexpr const char* kMoreFiles =
    "; raise the number of open files (ulimit -n), or use fewer ranks";

// Describes the failure of the call that has just set errno.
inline SystemError failed_call(const std::string& call) {
  const int error = errno;
  const char* remedy = error == EMFILE || error == ENFILE ? kMoreFiles
                       : error == EFBIG ? "; raise the largest size of a file (ulimit -f)"
                                        : "";
  return SystemError(call + ": " + std::strerror(error) + remedy);
}

}  // namespace distgrad
