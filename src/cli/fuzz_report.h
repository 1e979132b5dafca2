// The reports of `distgrad fuzz`: of the programs that failed, as small as they got.
#pragma once

#include <string>
#include <vector>

#include "cli/report_files.h"
#include "cli/verify.h"

namespace distgrad {

struct FuzzSummary {
  std::string command;  // as a shell takes it again
  long matches = 0;     // programs in which nothing is wrong
  double elapsed_s = 0;
  std::string python;  // the interpreter asked for; empty: the default one
};

// Runs the scenario files at `paths` once more, as `distgrad run` does, and reports on them. False
// where a report cannot be written.
bool report_failures(const std::vector<ReportFile>& reports, const std::vector<std::string>& paths,
                     const FuzzSummary&, Interpreters&);

}  // namespace distgrad
