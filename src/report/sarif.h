// Writes SARIF 2.1.0, for code scanning: a result for each case that is broken or not as expected,
// at the step's line in the scenario file, and a rule for each finding, with a remedy. Cases that
// came out as expected, or were skipped, are no results, since readers such as GitHub's would show
// them as problems.
#pragma once

#include <nlohmann/json.hpp>

#include "report/report_format.h"

namespace distgrad {

nlohmann::ordered_json sarif_report(const Report&, const FormatContext&);
std::string sarif_text(const Report&, const FormatContext&);

inline constexpr ReportFormat kSarif = {"--sarif", "write the results as SARIF 2.1.0", sarif_text};

}  // namespace distgrad
