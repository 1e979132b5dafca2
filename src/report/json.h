// Writes the report for programs. docs/command-line.md has the fields that CI jobs depend on;
// `distgrad schema report` prints them as a JSON Schema.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/report.h"

namespace distgrad {

struct JsonReportOptions {
  bool full = false;  // writes tensors over 1,000 elements, too, instead of a summary of them
  std::string host;   // the name of this machine
  std::vector<std::string> hosts = {};       // of the ranks, by rank, if they are on several
  std::vector<std::string> mesh_order = {};  // the order in which meshes lie over them, if not
                                             // their own
};

// Makes the field `expected` of a case.
nlohmann::ordered_json expectation_json(const Expectation&);

// Makes the field `measured` of a finding.
nlohmann::ordered_json measured_json(const Measured&);

// Returns the report, indented, with arrays of numbers on one line. Ends with a newline. Bytes that
// are not UTF-8 (a rank's output may hold any) are replaced.
std::string json_report_text(const Report&, const JsonReportOptions&);

// Indents by two and puts whatever fits into 120 columns on one line.
std::string json_text(const nlohmann::ordered_json&);

}  // namespace distgrad
