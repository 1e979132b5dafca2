// Writes one complete HTML file for people: a summary, a list to filter and to search, and each
// case with its program, debate table, heat map of the error, and the values and cotangents through
// the steps. Its size is bounded, and it says what it leaves out. Templates: html/.
#pragma once

#include "report/report_format.h"

namespace distgrad {

std::string html_report(const Report&, const FormatContext&);

inline constexpr ReportFormat kHtml = {"--html", "write a page to look through in a browser",
                                       html_report, true};

}  // namespace distgrad
