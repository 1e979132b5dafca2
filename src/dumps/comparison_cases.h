// A comparison of saved gradients as the report that other formats are made of: HTML, JUnit,
// Markdown, SARIF.
#pragma once

#include <memory>

#include "dumps/compare_dumps.h"
#include "model/report.h"

namespace distgrad::dumps {

struct ComparisonCases {
  std::unique_ptr<Scenario> files;  // what the cases' file is: the observed dump. They point to it.
  Report report;  // a case a parameter, "observed:NAME", and a picture of parameters by ranks
};

// `strict`: what is vacuous is wrong. `report.command` and `summary.elapsed_s` are left empty.
ComparisonCases comparison_cases(const DumpComparison&, bool strict);

}  // namespace distgrad::dumps
