// distgrad step [OPTION...] FILE:FUNCTION runs `python -m distgrad.step`, which needs no rank
// program, and writes its report in other formats.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/regular_file.h"
#include "cli/command.h"
#include "cli/parse_arguments.h"
#include "cli/python_module.h"
#include "cli/report_files.h"
#include "cli/step_report.h"
#include "report/words.h"

namespace distgrad {
namespace {

constexpr const char* kStepExamples =
    "FUNCTION returns (model, step) on each rank; with --single, the gradients.\n"
    "Without --ranks, under torchrun, srun or mpirun, it joins their ranks.\n"
    "Exit code 0: right or disputed, 1: wrong, 2: bad arguments, 3: a rank raised,\n"
    "died or hung, or nothing could be judged.\n"
    "Examples:\n"
    "  distgrad step train.py:parallel --ranks 4 --html step.html\n"
    "  distgrad step train.py:parallel --single single\n";

constexpr std::size_t kMostStepText = 64 << 20;

using Json = nlohmann::ordered_json;

struct StepOptions {
  std::string function, single, objective = "mean", backend = "gloo", json, python;
  std::vector<std::string> detached, copies, pieces;
  int ranks = 4;
  bool joins = false;  // no --ranks: check_step takes a launcher's ranks if there are some
  double timeout_s = 60;
  bool strict = false, float64 = false;
  std::string report, ran;  // of write_step() in src/python/distgrad/driver.py
  std::vector<ReportFile> files;
};

void check_one_of(const char* option, const std::string& given, std::vector<std::string> known) {
  if (std::find(known.begin(), known.end(), given) == known.end())
    throw UserError(fmt::format("step: {} \"{}\": there are {}", option, for_terminal(given),
                                fmt::join(known, ", ")));
}

void check(const StepOptions& options) {
  check_one_of("--objective", options.objective, {"mean", "sum", "replicated"});
  check_one_of("--backend", options.backend, {"gloo", "nccl"});
  if (options.ranks < 1)
    throw UserError(fmt::format("step: --ranks is a number of ranks, not {}", options.ranks));
  if (!(options.timeout_s > 0) || !std::isfinite(options.timeout_s))
    throw UserError(
        fmt::format("step: --timeout is a number of seconds above 0, not {:g}", options.timeout_s));
}

std::optional<ExitCode> parse(const Arguments& arguments, StepOptions& options) {
  CLI::App app(
      "Measure on several ranks whether the gradients of a training step are the derivative of "
      "its loss.",
      "distgrad step");
  auto* function = app.add_option("FUNCTION", options.function, "train.py:parallel");
  app.add_option("--single", options.single,
                 "compare with this function of the same file, run in one process")
      ->type_name("NAME");
  app.add_option("--ranks", options.ranks, "how many are started (default 4)")->type_name("N");
  app.add_option("--objective", options.objective,
                 "of the ranks' losses: mean (default), sum or replicated")
      ->type_name("NAME");
  app.add_option("--detached", options.detached,
                 "what is detached at this line, byol.py:12, is a constant; all: wherever it is")
      ->type_name("LINE")
      ->allow_extra_args(false);
  app.add_option("--copies", options.copies, "parameters that are copies of one; repeatable")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
  app.add_option("--pieces", options.pieces, "parameters that are pieces of one; repeatable")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
  app.add_flag("--float64", options.float64, "run the step in float64, and judge that");
  app.add_flag("--strict", options.strict, "exit code 1 also for what is disputed");
  app.add_option("--backend", options.backend, "gloo (default) or nccl")->type_name("NAME");
  app.add_option("--timeout", options.timeout_s, "seconds for one run of the step (default 60)")
      ->type_name("S");
  app.add_option("--json", options.json, "the report as JSON; - is standard output")
      ->type_name("FILE");
  const ReportOptions reports(app, "--json");
  app.add_option("--python", options.python, "the interpreter; its torch runs the step")
      ->type_name("PATH");
  auto* report = app.add_option("--report", options.report)->group("");
  app.add_option("--ran", options.ran)->group("");
  describe(app, kStepExamples);
  if (const auto done = parse_arguments(app, arguments)) return done;
  check(options);
  if (function->count() + report->count() != 1)
    throw UserError("step: which function? As in: distgrad step train.py:parallel");
  if (report->count() == 0 && options.function.find(':') == std::string::npos)
    throw UserError("step: \"" + options.function +
                    "\" is not FILE:FUNCTION, such as train.py:parallel");
  options.joins = app["--ranks"]->count() == 0;
  options.files = reports.files("step");
  for (const ReportFile& file : options.files)
    if (file.path == "-")
      throw UserError("step: " + std::string(file.format->option) + " - : name a file");
  return std::nullopt;
}

ExitCode write_report(const StepOptions& options) {
  StepReport step = read_step_report(read_regular_file(options.report, kMostStepText).text,
                                     options.report, options.strict);
  step.report.command = options.ran;
  return write_reports(options.files, step.report, format_context(options.ran))
             ? ExitCode::kAsExpected
             : ExitCode::kUserError;
}

}  // namespace

ExitCode step_command(const Arguments& arguments) {
  StepOptions options;
  if (const auto done = parse(arguments, options)) return *done;
  if (!options.report.empty()) return write_report(options);
  Json command = {"distgrad", "step"};
  for (const std::string& argument : arguments) command.push_back(argument);
  Json request = {
      {"command", command},         {"function", options.function},
      {"single", options.single},   {"objective", options.objective},
      {"backend", options.backend}, {"detached", options.detached},
      {"copies", options.copies},   {"pieces", options.pieces},
      {"float64", options.float64}, {"timeout", options.timeout_s},
      {"strict", options.strict},   {"json", options.json},
      {"ranks", options.ranks},
  };
  if (options.joins) request["ranks"] = nullptr;
  for (const char* format : {"html", "junit", "markdown", "sarif"}) request[format] = "";
  for (const ReportFile& file : options.files)
    request[std::string(file.format->option.substr(2))] = file.path;
  return run_python_module(options.python, "distgrad.step", {request.dump()}, false);
}

}  // namespace distgrad
