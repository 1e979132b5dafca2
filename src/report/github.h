// GitHub's workflow commands, which make annotations at a line of a file.
#pragma once

#include "report/report_format.h"

namespace distgrad {

// GitHub shows no more of a step.
inline constexpr std::size_t kMostAnnotations = 10;

// A line each ("::error file=a.json,line=7,title=...::..."), the worst first; of more than fit the
// last one says how many there are besides. Empty where all is as expected.
std::string github_annotations(const Report&, const FormatContext&);

}  // namespace distgrad
