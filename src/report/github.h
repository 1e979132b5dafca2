// Writes GitHub's workflow commands, which annotate a line of a file.
#pragma once

#include "report/report_format.h"

namespace distgrad {

// GitHub shows no more annotations of a step.
inline constexpr std::size_t kMostAnnotations = 10;

// Returns a line each ("::error file=a.json,line=7,title=...::..."), the worst first. If not all
// fit, the last one says how many more there are. Returns "" if all is as expected.
std::string github_annotations(const Report&, const FormatContext&);

}  // namespace distgrad
