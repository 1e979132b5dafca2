// Holds the options of `distgrad run`.
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

// Says which part of the cases this run does, out of `count` runs that together do all of them.
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
  std::vector<std::string> mesh_order;  // over a launcher's ranks; empty: each mesh's own
  Shard shard;
  std::size_t durations = 0;  // how many of the slowest cases are shown
  std::vector<ReportFile> reports;
  bool full = false;
  bool quiet = false;
  bool verbose = false;
  Color color = Color::kAuto;
};

// Returns an exit code if the help was asked for. Throws UserError.
std::variant<RunOptions, ExitCode> parse_run_options(const Arguments&);

// Reads another command's options, without --help, with the command's name in messages.
RunOptions run_options_of(const std::string& command, const Arguments&);

// Returns what "Again:" starts with: "distgrad run" and the options that change the result, but not
// what the cases' names already say.
std::string again_text(const RunOptions&);

// Adds what an option lists: "3,2" of --world-size for the field "world_size". Throws UserError
// with the scenario's words for the problem, after the command's and the option's name.
void add_overrides(std::string_view command, Overrides&, const std::string& field,
                   const std::vector<std::string>& values);

}  // namespace distgrad
