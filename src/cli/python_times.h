// Measures how ranks in Python spend their time: DISTGRAD_TIMES in their environment names a file
// to which they append (src/python/distgrad/ranks/times.py).
#pragma once

#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace distgrad {

class PythonTimes {
 public:
  // Passes the file, which is in memory and goes with this object, to processes started from now
  // on. Only one may exist at a time.
  PythonTimes();
  ~PythonTimes();
  PythonTimes(const PythonTimes&) = delete;
  PythonTimes& operator=(const PythonTimes&) = delete;

  // Returns a line for the report, with the slowest process of each phase, or "" if no rank in
  // Python ran.
  std::string text() const;

 private:
  UniqueFd file_;
};

// Does what text() does, on the file's content.
std::string python_times_text(std::string_view lines);

}  // namespace distgrad
