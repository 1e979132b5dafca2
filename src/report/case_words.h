// Words a case and a problem, for every report for CI.
#pragma once

#include <string>

#include "model/report.h"
#include "report/report_format.h"

namespace distgrad {

// Says in one line what came of a case, and how that differs from what its file expects.
std::string headline(const CaseResult&);

// Returns the text report of one case without colours and, if something is wrong, the command that
// runs it again. Cuts it to a length that CI pages take, and then says so.
std::string reported_alone(const CaseResult&, const FormatContext&);

// Returns "Where:", and below it each sentence of Report::where; "" if there are none.
std::string where_text(const Report&);

// Describes a run that ran something and in which nothing is wrong: "3 cases, all as expected", "5
// cases: 3 as expected, 2 skipped".
std::string nothing_wrong(const Report&);

// Names what failures share: "own-slice (all_gather)", "crash", "match, though the file expects
// mismatch".
std::string finding_name(const CaseResult&);

// Returns "mine/sum.json:3:5: /steps/0: what is wrong", with the caret below if there is one.
std::string problem_text(const InvalidFile&);

}  // namespace distgrad
