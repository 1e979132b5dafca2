// Turns a comparison of saved gradients into the report that other formats start from: HTML, JUnit,
// Markdown, SARIF.
#pragma once

#include <map>
#include <string>

#include "dumps/compare_dumps.h"
#include "model/report.h"

namespace distgrad::dumps {

struct ComparisonCases {
  std::map<std::string, Scenario> files;  // the cases point to these, by path
  Report report;
};

// Makes a case for each parameter, "observed:NAME", and a picture of parameters by ranks.
// `report.command` and `summary.elapsed_s` stay empty. With `strict` a vacuous comparison is wrong,
// and one without some ranks' files. The cases lie at `place`, "train.py:12", if that is not empty.
ComparisonCases comparison_cases(const DumpComparison&, bool strict, const std::string& place = "");

}  // namespace distgrad::dumps
