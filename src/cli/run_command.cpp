// distgrad run [OPTION...] [PATH...]
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/interrupts.h"
#include "base/version.h"
#include "cli/command.h"
#include "cli/load.h"
#include "cli/run_options.h"
#include "cli/verify.h"
#include "golden/store.h"
#include "report/json.h"
#include "report/status_line.h"
#include "report/summary.h"
#include "report/text.h"
#include "report/words.h"

namespace distgrad {
namespace {

bool wants_color(Color color, bool is_terminal) {
  if (color != Color::kAuto) return color == Color::kAlways;
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  const bool refused = (no_color != nullptr && *no_color != '\0') ||
                       (terminal != nullptr && std::string_view(terminal) == "dumb");
  return is_terminal && !refused;
}

TextOptions text_options(const RunOptions& options) {
  TextOptions text;
  const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  text.color = wants_color(options.color, is_terminal);
  text.align = is_terminal;
  text.quiet = options.quiet;
  text.verbose = options.verbose;
  text.full = options.full;
  text.simulated = options.simulate;
  text.again = again_text(options);
  return text;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

// As a shell would take it again.
std::string command_text(const Arguments& arguments) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_";
  std::string text = "distgrad run";
  for (const std::string& word : arguments) {
    const bool plain = !word.empty() && word.find_first_not_of(kPlain) == std::string::npos;
    text += " " + (plain ? word : shell_quoted(word));
  }
  return text;
}

// What goes on while cases are worked on: results come in the order of the cases and are printed at
// once.
class Progress : public VerifyListener {
 public:
  Progress(const RunOptions& options, const Loaded& loaded, Report& report)
      : report_(report),
        text_(text_options(options), loaded.cases),
        prints_(options.json != "-"),
        status_(STDERR_FILENO, !options.quiet && ::isatty(STDERR_FILENO) == 1,
                loaded.cases.size()) {}

  void on_result(CaseResult result) override {
    print(text_.add(result));
    report_.cases.push_back(std::move(result));
  }

  void on_invalid(InvalidFile invalid) override {
    status_.erase();
    tell_invalid({&invalid, 1});
    report_.invalid.push_back(std::move(invalid));
  }

  void on_progress(std::size_t done, std::size_t failed) override { status_.update(done, failed); }

  void finish() { print(text_.finish(report_)); }

 private:
  void print(const std::string& text) {
    if (!prints_ || text.empty()) return;
    status_.erase();
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

  Report& report_;
  TextReport text_;
  bool prints_;
  StatusLine status_;
};

}  // namespace

ExitCode run_command(const Arguments& arguments) {
  const auto parsed = parse_run_options(arguments);
  if (const auto* done = std::get_if<ExitCode>(&parsed)) return *done;
  RunOptions options = std::get<RunOptions>(parsed);
  Interpreters interpreters;
  options.overrides.torch_of_python = [&](const std::string& python) {
    return interpreters.find(python).torch;
  };

  const auto started = std::chrono::steady_clock::now();
  const Interrupts interrupts;
  Loaded loaded = load_cases(options.paths, options.overrides);
  if (options.simulate) loaded.cases = one_for_each_truth(loaded.cases);

  Report report;
  report.command = command_text(arguments);
  report.torch = kTorchVersion;
  report.invalid = loaded.invalid;
  tell_invalid(loaded.invalid);

  VerifyOptions how{.simulate_only = options.simulate,
                    .strict = options.strict,
                    .interpreters = &interpreters,
                    .replace_truth = {}};
  golden::Store store(options.golden);
  if (!options.golden.empty())
    how.replace_truth = [&](const Case& c, const Program& program, Simulation& simulation) {
      return store.replace_truth(c, program, simulation);
    };

  Progress progress(options, loaded, report);
  std::string failure;
  try {
    verify(loaded.cases, how, progress);
  } catch (const SystemError& e) {  // what was finished is reported all the same
    failure = e.what();
  }

  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
  report.summary = summary_of(report.cases);
  report.summary.elapsed_s = elapsed.count();
  progress.finish();
  if (!options.json.empty())
    write_file_atomically(options.json, json_report_text(report, {options.full, host_name()}));
  if (const int signal = interrupted_by()) {
    fmt::print(stderr, "distgrad: interrupted; {} of {} cases were finished\n", report.cases.size(),
               loaded.cases.size());
    return static_cast<ExitCode>(128 + signal);  // as shells say it
  }
  if (failure.empty()) return exit_code_of(report, options.allow_empty);
  fmt::print(stderr, "distgrad: {}\n", failure);
  return ExitCode::kBroken;
}

}  // namespace distgrad
