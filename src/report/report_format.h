// Lists the formats in which `distgrad run` can write its report, each to a file of its own. Every
// format is an option that takes a file.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/report.h"
#include "report/case_text.h"
#include "report/value_trace.h"

namespace distgrad {

// Holds what a format may need besides the report.
struct FormatContext {
  TextOptions text;                          // for cases in words; formats never colour them
  std::string host = {};                     // the name of this machine
  std::vector<std::string> hosts = {};       // of the ranks, by rank, if they are on several
  std::vector<std::string> mesh_order = {};  // the order in which meshes lie over them, if not
                                             // their own
  // Names the absolute folder that code hosts show paths against: the repository's.
  std::string root = {};
  // `ended_early` says why not all cases ran, "interrupted; 3 of 10 cases were finished"; empty if
  // all did. `broken_off` says that nobody wanted that, so that what is missing must not look like
  // success.
  std::string ended_early = {};
  bool broken_off = false;
  // Has the traces of values through cases that went wrong, by the cases' names; null if not
  // wanted.
  const std::map<std::string, ValueTrace>* traces = nullptr;
};

struct ReportFormat {
  std::string_view option;  // "--junit"
  std::string_view help;    // a line
  std::string (*text)(const Report&, const FormatContext&);
  bool wants_traces = false;  // FormatContext::traces, which cost simulations
};

std::span<const ReportFormat* const> report_formats();

}  // namespace distgrad
