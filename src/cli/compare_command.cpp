// distgrad compare [OPTION...] REFERENCE OBSERVED...
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/regular_file.h"
#include "cli/command.h"
#include "cli/parse_arguments.h"
#include "cli/report_files.h"
#include "cli/say.h"
#include "cli/terminal.h"
#include "dumps/comparison_cases.h"
#include "dumps/comparison_report.h"
#include "dumps/read_dump.h"
#include "report/json.h"
#include "report/words.h"

namespace distgrad {
namespace {

struct CompareOptions {
  std::string reference;
  std::vector<std::string> observed;
  dumps::ComparisonOptions comparison;
  std::string prefix;  // of names
  std::string json;
  std::vector<ReportFile> reports;
  // Come from check_step: a file with the text that other formats show in place of the
  // comparison's, sentences on where the mistake lies, what the user ran and in which folder, where
  // that defines the step ("train.py:12"), and the seconds that the check took before this.
  std::string text, ran, from, place;
  std::vector<std::string> where;
  double before_s = 0;
  bool full = false;
  bool strict = false;
};

constexpr std::size_t kMostText = 64 << 20;

double tolerance_value(const std::string& text, const char* option) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value) || value < 0)
    throw UserError(fmt::format("compare: {} \"{}\" is not a number of at least 0", option, text));
  return value;
}

// Reads "micro-batches=4".
NamedCount count_value(const std::string& text) {
  const std::size_t at = text.rfind('=');
  const std::string digits = at == std::string::npos ? "" : text.substr(at + 1);
  const bool good = at > 0 && !digits.empty() && digits.size() < 7 &&
                    digits.find_first_not_of("0123456789") == std::string::npos;
  if (!good || std::stoi(digits) == 0)
    throw UserError(fmt::format("compare: --count \"{}\" is not NAME=NUMBER", text));
  return {for_terminal(text.substr(0, at)), std::stoi(digits)};
}

// Reads "norm.*=sum".
std::pair<std::string, std::string> reduction_value(const std::string& text) {
  const std::size_t at = text.rfind('=');
  const std::string op = at == std::string::npos ? "" : text.substr(at + 1);
  if (at == 0 || op == "avg" || !dumps::reduction_named(op))
    throw UserError(fmt::format(
        "compare: --reduce \"{}\" is not PATTERN=OP; there are sum, mean, max, min, product",
        text));
  return {text.substr(0, at), op};
}

DType dtype_value(const std::string& name) {
  if (const auto dtype = dtype_named(name)) return *dtype;
  throw UserError(
      fmt::format("compare: --dtype \"{}\": there are float64, float32, bfloat16, float16", name));
}

std::optional<ExitCode> parse(const Arguments& arguments, CompareOptions& options) {
  CLI::App app("Compare gradients that a training script saved with a reference.",
               "distgrad compare");
  std::string rtol, atol, dtype;
  std::vector<std::string> counts, reductions;
  app.add_option("REFERENCE", options.reference,
                 "a .safetensors or .json file, or a folder with one for each rank")
      ->required();
  app.add_option("OBSERVED", options.observed, "the same, of the run under test; or its files")
      ->required();
  app.add_option("--rtol", rtol, "relative tolerance, of the norm (default: by dtype)")
      ->type_name("R");
  app.add_option("--atol", atol, "absolute tolerance of an element (default 0)")->type_name("A");
  app.add_flag("--elementwise", options.comparison.tolerance.elementwise,
               "relative to each element, as torch.allclose");
  app.add_option("--dtype", dtype, "what the run computed in, if shorter than what it saved")
      ->type_name("DTYPE");
  app.add_option("--count", counts,
                 "a number that a factor may come from, as micro-batches=4; repeatable")
      ->type_name("NAME=N")
      ->allow_extra_args(false);
  app.add_option("--partly-held", options.comparison.partly_held,
                 "parameters that some ranks need not have; repeatable")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
  app.add_option("--reduce", reductions,
                 "plain tensors to be reduced over the ranks first, as norm.*=sum")
      ->type_name("PATTERN=OP")
      ->allow_extra_args(false);
  app.add_option("--prefix", options.prefix, "what is left out where a name begins with it")
      ->type_name("PREFIX");
  app.add_flag("--strict", options.strict,
               "a match that shows nothing, or lacks a rank's file, fails");
  app.add_option("--json", options.json, "write the comparison as JSON; - is standard output")
      ->type_name("FILE");
  const ReportOptions reports(app, "--json");
  app.add_flag("--full", options.full, "every parameter, a line each");
  // for check_step only, which has more to say and sees more
  app.add_option("--text", options.text)->group("");
  app.add_option("--where", options.where)->allow_extra_args(false)->group("");
  app.add_option("--ran", options.ran)->group("");
  app.add_option("--from", options.from)->group("");
  app.add_option("--place", options.place)->group("");
  app.add_option("--before-s", options.before_s)->group("");
  app.add_flag("--saw-short-dtype", options.comparison.tolerance.saw_short_dtype)->group("");
  describe(app,
           "Examples:\n"
           "  distgrad compare single_gpu.safetensors grads/\n"
           "  distgrad compare --json off.json reference/ run/rank_*.safetensors\n"
           "distgrad.save_gradients(model, folder) writes what this reads.\n");
  if (const auto done = parse_arguments(app, arguments)) return done;
  options.reports = reports.files("compare");
  if (!rtol.empty()) options.comparison.tolerance.rtol = tolerance_value(rtol, "--rtol");
  if (!atol.empty()) options.comparison.tolerance.atol = tolerance_value(atol, "--atol");
  if (!dtype.empty()) options.comparison.tolerance.dtype = dtype_value(dtype);
  for (const std::string& reduction : reductions)
    options.comparison.reductions.push_back(reduction_value(reduction));
  for (const std::string& count : counts) options.comparison.counts.push_back(count_value(count));
  return std::nullopt;
}

dumps::DumpComparison compare_gradients(const CompareOptions& options) {
  dumps::Dump reference = dumps::read_dump({&options.reference, 1});  // its problems come first
  dumps::Dump observed = dumps::read_dump(options.observed);
  if (!options.prefix.empty())
    for (dumps::Dump* dump : {&reference, &observed}) dump->strip_prefix(options.prefix);
  return dumps::compare_dumps(reference, observed, options.comparison);
}

}  // namespace

ExitCode compare_command(const Arguments& arguments) {
  CompareOptions options;
  if (const auto done = parse(arguments, options)) return *done;
  const auto started = std::chrono::steady_clock::now();
  const dumps::DumpComparison comparison = compare_gradients(options);
  const std::string text = dumps::comparison_text(comparison, {options.full, terminal_width(100)});
  if (options.json != "-" && !prints_report(options.reports)) put(text);
  if (!options.json.empty())
    write_file_atomically(options.json, json_text(dumps::comparison_json(comparison)));
  if (!options.reports.empty()) {
    const std::string printed =
        options.text.empty() ? text : read_regular_file(options.text, kMostText).text;
    // The reports name files as the user sees them, and check_step compares in a folder of its own.
    if (!options.from.empty()) std::filesystem::current_path(options.from);
    dumps::ComparisonCases cases =
        dumps::comparison_cases(comparison, options.strict, options.place);
    Report& report = cases.report;
    report.where = options.where;
    report.printed = printed;
    report.command = options.ran.empty() ? command_text("compare", arguments) : options.ran;
    report.summary.elapsed_s =
        options.before_s +
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    if (!write_reports(options.reports, report, format_context(report.command)))
      return ExitCode::kUserError;
  }
  const bool shows_all = comparison.vacuous.empty() && comparison.absent_ranks.empty();
  const bool good = comparison.all_right() && (shows_all || !options.strict);
  return good ? ExitCode::kAsExpected : ExitCode::kNotAsExpected;
}

}  // namespace distgrad
