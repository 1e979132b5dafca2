// Where the time of ranks in Python goes: DISTGRAD_TIMES in their environment names a file that they append to
// (src/python/distgrad/ranks/times.py).
#pragma once

#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace distgrad {

class PythonTimes {
 public:
  // From now on processes that are started get the file. It is in memory and goes with this. One at a time.
  PythonTimes();
  ~PythonTimes();
  PythonTimes(const PythonTimes&) = delete;
  PythonTimes& operator=(const PythonTimes&) = delete;

  // A line for the report, of each phase the slowest process; empty where no rank in Python has run.
  std::string text() const;

 private:
  UniqueFd file_;
};

// As text(), from the file's content.
std::string python_times_text(std::string_view lines);

}  // namespace distgrad
