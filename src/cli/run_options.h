// The options of `distgrad run`.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/exit_code.h"
#include "cli/command.h"
#include "cli/report_files.h"
#include "scenario/case_id.h"

namespace distgrad {

enum class Color { kAuto, kAlways, kNever };

// The part of the cases that this run does, of `count` runs that do all of them together.
struct Shard {
  int index = 1;  // from 1
  int count = 1;
};

struct RunOptions {
  std::vector<std::string> paths;
  Overrides overrides;  // filter and timeout among them
  bool simulate = false;
  std::string golden;      // the folder of golden files to compare with, or empty
  bool share_gpu = false;  // several ranks may have one GPU under NCCL
  bool strict = false;
  bool allow_empty = false;
  bool fail_fast = false;
  int jobs = 1;                         // teams of ranks side by side
  std::vector<std::string> mesh_order;  // over a launcher's ranks; empty: every mesh's own
  Shard shard;
  std::size_t durations = 0;  // how many of the slowest cases are shown
  std::vector<ReportFile> reports;
  bool full = false;
  bool quiet = false;
  bool verbose = false;
  Color color = Color::kAuto;
};

// An exit code where the help was asked for. Throws UserError.
std::variant<RunOptions, ExitCode> parse_run_options(const Arguments&);

// Of another command, without --help: its messages have the command's name.
RunOptions run_options_of(const std::string& command, const Arguments&);

// What "Again:" starts with: "distgrad run" and the options that change what comes out, but not
// what the cases' names say already.
std::string again_text(const RunOptions&);

// What an option lists: "3,2" for --world-size, which is the field "world_size". Throws UserError
// with the scenario's own words for what is wrong, behind the command's and the option's name.
void add_overrides(std::string_view command, Overrides&, const std::string& field,
                   const std::vector<std::string>& values);

}  // namespace distgrad
