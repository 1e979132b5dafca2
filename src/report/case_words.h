// A case and a problem in the words that every report for CI shares.
#pragma once

#include <string>

#include "model/report.h"
#include "report/report_format.h"

namespace distgrad {

// What came of a case, and in how far that is not what its file expects. One line.
std::string headline(const CaseResult&);

// The text report of one case without colours, and the command that runs it again where something
// is wrong with it. Cut to a length that CI pages bear, and then says so.
std::string reported_alone(const CaseResult&, const FormatContext&);

// Of a run that ran something and in which nothing is wrong: "3 cases, all as expected", "5 cases:
// 3 as expected, 2 skipped".
std::string nothing_wrong(const Report&);

// What failures have in common: "own-slice (all_gather)", "crash", "match, though the file expects
// mismatch".
std::string finding_name(const CaseResult&);

// "mine/sum.json:3:5: /steps/0: what is wrong", with the caret below where there is one.
std::string problem_text(const InvalidFile&);

}  // namespace distgrad
