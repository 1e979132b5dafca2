// The report for programs: the fields that CI jobs depend on, in docs/command-line.md; `distgrad
// schema report` has them as a JSON Schema.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/report.h"

namespace distgrad {

struct JsonReportOptions {
  bool full = false;  // tensors over 1,000 elements too, rather than a summary of them
  std::string host;   // the name of this machine
  std::vector<std::string> hosts = {};       // of the ranks, by rank, where they are on several
  std::vector<std::string> mesh_order = {};  // in which meshes are laid over them, if not their own
};

// The field `expected` of a case.
nlohmann::ordered_json expectation_json(const Expectation&);

// The field `measured` of a finding.
nlohmann::ordered_json measured_json(const Measured&);

// The report, indented, with arrays of numbers on one line; ends with a newline. Bytes that are no
// UTF-8 (a rank's output may hold any) are replaced.
std::string json_report_text(const Report&, const JsonReportOptions&);

// Indented by two; whatever fits into 120 columns is on one line.
std::string json_text(const nlohmann::ordered_json&);

}  // namespace distgrad
