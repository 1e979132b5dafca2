// Writes Markdown for the summary of a CI job: counts, then the worst cases first, in full while
// there is room, then a line each. GitHub refuses a summary above 1 MiB, so what does not fit is
// left out, and the summary says how much.
#pragma once

#include "report/report_format.h"

namespace distgrad {

std::string markdown_report(const Report&, const FormatContext&);

inline constexpr ReportFormat kMarkdown = {
    "--markdown", "write a summary in Markdown, for a CI job's page", markdown_report};

}  // namespace distgrad
