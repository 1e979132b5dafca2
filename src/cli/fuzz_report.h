// Writes the reports of `distgrad fuzz`, on the programs that failed, as small as they got.
#pragma once

#include <string>
#include <vector>

#include "cli/report_files.h"
#include "verify/verify.h"

namespace distgrad {

struct FuzzSummary {
  std::string command;  // quoted for a shell
  long matches = 0;     // programs in which nothing is wrong
  double elapsed_s = 0;
  std::string python;  // the interpreter asked for; empty: the default one
};

// Runs the scenario files at `paths` once more, as `distgrad run` does, and reports on them.
// Returns false if a report cannot be written.
bool report_failures(const std::vector<ReportFile>& reports, const std::vector<std::string>& paths,
                     const FuzzSummary&, Interpreters&);

}  // namespace distgrad
