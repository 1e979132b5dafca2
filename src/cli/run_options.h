// The options of `distgrad run`.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/exit_code.h"
#include "cli/command.h"
#include "scenario/case_id.h"

namespace distgrad {

enum class Color { kAuto, kAlways, kNever };

struct RunOptions {
  std::vector<std::string> paths;
  Overrides overrides;  // filter and timeout among them
  bool simulate = false;
  std::string golden;  // the folder of golden files to compare with, or empty
  bool strict = false;
  bool allow_empty = false;
  std::string json;  // a path, "-", or empty
  bool full = false;
  bool quiet = false;
  bool verbose = false;
  Color color = Color::kAuto;
};

// An exit code where the help was asked for. Throws UserError.
std::variant<RunOptions, ExitCode> parse_run_options(const Arguments&);

// What "Again:" starts with: "distgrad run" and the options that change what comes out, but not
// what the cases' names say already.
std::string again_text(const RunOptions&);

}  // namespace distgrad
