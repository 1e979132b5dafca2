// The formats that `distgrad run` can write its report in: a table, each in a file of its own.
// Every format is an option that takes a file.
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

// What a format may want to know besides the report.
struct FormatContext {
  TextOptions text;                          // for cases in words; formats never colour them
  std::string host = {};                     // the name of this machine
  std::vector<std::string> hosts = {};       // of the ranks, by rank, where they are on several
  std::vector<std::string> mesh_order = {};  // in which meshes are laid over them, if not their own
  std::string root =
      {};  // the folder that code hosts show paths against: the repository's, absolute
  // Why not all cases were run, "interrupted; 3 of 10 cases were finished"; empty: all were.
  // `broken_off`: nobody wanted that, so that what is missing must not look like success.
  std::string ended_early = {};
  bool broken_off = false;
  // The traces of values through cases that went wrong, by the cases' names; null: none were
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
