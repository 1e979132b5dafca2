// Writes JUnit XML, as Jenkins and GitLab read it: a suite for each scenario file, a test case for
// each case. Whatever the file expects passes, even a mismatch. A case that could not be carried
// through is an error; any other one that is not as expected is a failure, with the text report as
// its text. Skipped and disputed cases are skipped, with the reason. An invalid file is an error,
// too.
#pragma once

#include "report/report_format.h"

namespace distgrad {

std::string junit_text(const Report&, const FormatContext&);

inline constexpr ReportFormat kJUnit = {"--junit", "write a JUnit XML report", junit_text};

}  // namespace distgrad
