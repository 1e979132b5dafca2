// A comparison of saved gradients as the report that other formats are made of: HTML, JUnit,
// Markdown, SARIF.
#pragma once

#include <map>
#include <string>

#include "dumps/compare_dumps.h"
#include "model/report.h"

namespace distgrad::dumps {

struct ComparisonCases {
  std::map<std::string, Scenario> files;  // what the cases point to, by path
  Report report;
};

// `report.command` and `summary.elapsed_s` are left empty.
//
// A case a parameter, "observed:NAME", and a picture of parameters by ranks. `strict`: what is
// vacuous is wrong.
ComparisonCases comparison_cases(const DumpComparison&, bool strict);

}  // namespace distgrad::dumps
