// distgrad run [OPTION...] [PATH...]
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/interrupts.h"
#include "base/version.h"
#include "base/visible_text.h"
#include "cli/color.h"
#include "cli/command.h"
#include "cli/host.h"
#include "cli/interruption.h"
#include "cli/load.h"
#include "cli/python_times.h"
#include "cli/run_options.h"
#include "cli/say.h"
#include "cli/terminal.h"
#include "cli/worst_traces.h"
#include "golden/store.h"
#include "launched/leader.h"
#include "model/mesh_order.h"
#include "report/durations.h"
#include "report/status_line.h"
#include "report/summary.h"
#include "report/text.h"
#include "report/words.h"
#include "verify/shared_truth.h"
#include "verify/verify.h"

namespace distgrad {
namespace {

TextOptions run_text_options(const RunOptions& options) {
  TextOptions text;
  const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  text.color = wants_color(options.color);
  text.align = is_terminal;
  text.width = terminal_width(text.width);
  text.quiet = options.quiet;
  text.verbose = options.verbose;
  text.full = options.full;
  text.simulated = options.simulate;
  text.again = again_text(options);
  if (leader())
    text.host_of = [order = options.mesh_order](const Case& which, int rank) {
      const std::vector<std::string> names = leader()->host_names();
      const std::vector<int> places = places_in_order(which.scenario->mesh, order);
      const auto place = static_cast<std::size_t>(
          places.empty() ? rank : places.at(static_cast<std::size_t>(rank)));
      return place < names.size() ? names[place] : "";
    };
  return text;
}

// Deals the cases out in turn, so that a part gets some of every file, and slow files are shared.
std::vector<Case> part_of(std::vector<Case> cases, const Shard& shard) {
  std::vector<Case> part;
  for (auto i = static_cast<std::size_t>(shard.index - 1); i < cases.size();
       i += static_cast<std::size_t>(shard.count))
    part.push_back(std::move(cases[i]));
  return part;
}

// Refuses a mistyped axis, which would leave every mesh as it lies.
void check_mesh_order(const std::vector<std::string>& order, const std::vector<Case>& cases) {
  if (order.empty()) return;
  const std::string option = fmt::format("run: --mesh-order {}", fmt::join(order, ","));
  if (!leader())
    throw UserError(option +
                    ": no launcher has started this process, so there are no ranks to lay "
                    "a mesh over");
  if (std::ranges::any_of(cases,
                          [&](const Case& c) { return is_order_of(order, c.scenario->mesh); }))
    return;
  std::set<std::string> known;
  for (const Case& c : cases)
    for (const MeshAxis& axis : c.scenario->mesh) known.insert(axis.name);
  throw UserError(fmt::format(
      "{}: no case has a mesh of just these axes{}", option,
      known.empty() ? "; none has a mesh" : fmt::format("; there are {}", fmt::join(known, ", "))));
}

// Says where the ranks were, how many cases used only some of them, and how many laid their mesh
// otherwise; "" without a launcher.
std::string launched_text(const Report& report, const std::vector<std::string>& mesh_order) {
  if (!leader()) return {};
  std::size_t part = 0, laid = 0;
  for (const CaseResult& r : report.cases) {
    if (r.verdict == Verdict::kSkipped) continue;
    part += r.which.world_size < leader()->world().size;
    laid += !places_in_order(r.which.scenario->mesh, mesh_order).empty();
  }
  std::string text = leader()->where();
  if (part > 0)
    text += fmt::format(" {} took fewer of them, from rank 0 on.",
                        count_text(static_cast<long>(part), "case"));
  if (laid > 0)
    text += fmt::format(" The mesh of {} lay over them as {}.",
                        count_text(static_cast<long>(laid), "case"), fmt::join(mesh_order, ","));
  return text + "\n";
}

// Says why not all cases ran, or returns "". `signal` interrupted the run, or is 0.
std::string early_end(const RunOptions& options, const Report& report, std::size_t cases,
                      const std::string& failure, int signal) {
  const auto finished = static_cast<std::size_t>(report.summary.cases);
  const bool stopped = options.fail_fast && finished < cases && !report.cases.empty() &&
                       is_wrong(report.cases.back());
  std::string why;
  if (signal != 0)
    why = interruption_text(signal);
  else if (!failure.empty())
    why = failure;
  else if (stopped)
    why = "stopped at the first case that is not as expected";
  if (why.empty()) return {};
  return fmt::format("{}; {} of {} cases were finished", why, finished, cases);
}

ExitCode exit_code(const RunOptions& options, const Report& report, bool all_written) {
  const ExitCode code = exit_code_of(report, options.allow_empty);
  return all_written || code == ExitCode::kBroken ? code : ExitCode::kUserError;
}

// Follows the work on cases: results come in the order of the cases and are printed at once.
class Progress : public VerifyListener {
 public:
  // `traces` asks for the traces through cases that went wrong.
  Progress(const RunOptions& options, const Loaded& loaded, bool traces, Report& report)
      : report_(report),
        is_reported_(!options.reports.empty()),
        keeps_all_(is_reported_ || options.durations > 0 || leader() != nullptr),
        wants_traces_(traces),
        text_(run_text_options(options), loaded.cases),
        prints_(!prints_report(options.reports)),
        status_(STDERR_FILENO, !options.quiet && ::isatty(STDERR_FILENO) == 1,
                loaded.cases.size()) {}

  void on_result(CaseResult result) override {
    print(text_.add(result));
    add_to(report_.summary, result);
    // The screen has shown everything about cases that are as expected, except what is counted at
    // its end.
    const bool is_shown = !is_reported_ && result.as_expected.value_or(false);
    if (is_shown && !keeps_all_ && result.notes.empty() && !is_vacuous(result)) return;
    if (is_shown) result.gradients.clear();
    report_.cases.push_back(std::move(result));
  }

  void on_conclusion(const Conclusion& conclusion) override {
    if (wants_traces_) traces_.consider(conclusion);
  }

  void on_invalid(InvalidFile invalid) override {
    status_.erase();
    report_invalid({&invalid, 1});
    report_.invalid.push_back(std::move(invalid));
  }

  void on_progress(std::size_t done, std::size_t failed) override { status_.update(done, failed); }

  void on_loading(const std::string& subject, double seconds) override {
    status_.say(importing_text(subject, seconds));
  }

  std::map<std::string, ValueTrace> traces() const { return traces_.by_case(); }

  void finish(std::size_t durations, const std::string& more) {
    print(text_.finish(report_));
    print(more);
    if (durations > 0) print(durations_text(report_, durations));
  }

 private:
  void print(const std::string& text) {
    if (!prints_ || text.empty()) return;
    status_.erase();
    put(text);
    std::fflush(stdout);
  }

  Report& report_;
  bool is_reported_;  // in some file
  bool keeps_all_;    // reports, durations and where ranks were are about every case
  bool wants_traces_;
  WorstTraces traces_;
  TextReport text_;
  bool prints_;
  StatusLine status_;
};

}  // namespace

ExitCode run_command(const Arguments& arguments) {
  const auto parsed = parse_run_options(arguments);
  if (const auto* done = std::get_if<ExitCode>(&parsed)) return *done;
  RunOptions options = std::get<RunOptions>(parsed);
  Host host(options.share_gpu);
  if (!options.simulate)  // --simulate starts no ranks
    host.answer_for_accelerators(options.overrides);

  const auto started = std::chrono::steady_clock::now();
  const Interrupts interrupts;
  Loaded loaded = load_cases(options.paths, options.overrides);
  if (options.simulate) loaded.cases = one_for_each_truth(loaded.cases);
  check_mesh_order(options.mesh_order, loaded.cases);
  loaded.cases = part_of(std::move(loaded.cases), options.shard);

  Report report;
  report.command = command_text("run", arguments);
  report.torch = kTorchVersion;
  report.invalid = loaded.invalid;
  report_invalid(loaded.invalid);

  VerifyOptions how{
      .simulate_only = options.simulate,
      .strict = options.strict,
      .fail_fast = options.fail_fast,
      .jobs = options.jobs,
      .interpreters = &host.interpreters(),
      .every_objective = options.verbose || options.simulate || !options.reports.empty(),
      .mesh_order = options.mesh_order,
      .replace_truth = {}};
  golden::Store store(options.golden);
  if (!options.golden.empty())
    how.replace_truth = [&](const Case& c, const Program& program, Simulation& simulation) {
      return store.replace_truth(c, program, simulation);
    };

  const bool draws_traces = wants_traces(options.reports);
  Progress progress(options, loaded, draws_traces && !options.simulate, report);
  std::optional<PythonTimes> python_times;
  if (options.verbose) python_times.emplace();
  std::string failure;
  try {
    verify(loaded.cases, how, progress);
  } catch (const SystemError& e) {  // finished cases are reported nevertheless
    failure = e.what();
  }

  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
  report.summary.elapsed_s = elapsed.count();
  progress.finish(
      options.durations,
      (options.quiet || options.simulate ? "" : launched_text(report, options.mesh_order)) +
          (python_times ? python_times->text() : ""));
  FormatContext context = format_context(run_text_options(options));
  context.mesh_order = options.mesh_order;
  const int signal = interrupted_by();  // a later one interrupts nothing
  context.ended_early = early_end(options, report, loaded.cases.size(), failure, signal);
  context.broken_off = signal != 0 || !failure.empty();
  const std::map<std::string, ValueTrace> traces = progress.traces();
  if (draws_traces) context.traces = &traces;
  const bool all_written = write_reports(options.reports, report, context);
  if (!context.ended_early.empty())
    complain("distgrad: {}\n", visible_text(context.ended_early, Lines::kKept));
  if (signal != 0) return exit_code_of_signal(signal);
  return failure.empty() ? exit_code(options, report, all_written) : ExitCode::kBroken;
}

}  // namespace distgrad
