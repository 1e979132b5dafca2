// SARIF 2.1.0, for code scanning: a result for each case that is broken or not as expected, at the
// step's line in the scenario file; a rule for each finding, with what to do about it. What the
// file expects, and what was skipped, is no result: readers such as GitHub's would show it as a
// problem.
#pragma once

#include <nlohmann/json.hpp>

#include "report/report_format.h"

namespace distgrad {

nlohmann::ordered_json sarif_report(const Report&, const FormatContext&);
std::string sarif_text(const Report&, const FormatContext&);

inline constexpr ReportFormat kSarif = {"--sarif", "write the results as SARIF 2.1.0", sarif_text};

}  // namespace distgrad
