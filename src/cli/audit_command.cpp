// distgrad audit [OPTION...] SUBJECT
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "audit/audit_report.h"
#include "audit/audit_run.h"
#include "audit/table.h"
#include "audit/tally.h"
#include "base/atomic_file.h"
#include "base/did_you_mean.h"
#include "base/error.h"
#include "base/interrupts.h"
#include "base/version.h"
#include "base/visible_text.h"
#include "cli/command.h"
#include "cli/guards.h"
#include "cli/interruption.h"
#include "cli/parse_arguments.h"
#include "cli/report_files.h"
#include "cli/say.h"
#include "cli/terminal.h"
#include "model/subject_text.h"
#include "scenario/scenario_text.h"
#include "scenario/subject_name.h"

namespace distgrad {
namespace {

constexpr const char* kAuditExamples =
    "Examples:\n"
    "  distgrad audit python:torch.distributed.nn.functional\n"
    "  distgrad audit all_gather=python:my_layers.py:GatherLayer.apply --out failing\n"
    "  distgrad audit --strict --objective mean all_reduce=python:comm.py:all_reduce\n";

// Reads --aspects, in the order of the columns; "all" means every one.
std::vector<Aspect> requested_aspects(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const AspectRow& row : aspects())
    if (row.on_request) known.emplace_back(row.name);
  known.emplace_back("all");
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const auto always = std::find_if(aspects().begin(), aspects().end(),
                                     [&](const AspectRow& row) { return row.name == name; });
    throw UserError(always != aspects().end()
                        ? fmt::format("audit: --aspects: {} is tried anyway; on request: {}", name,
                                      fmt::join(known, ", "))
                        : fmt::format("audit: --aspects: unknown \"{}\"{}", name,
                                      did_you_mean_or_known(name, known)));
  }
  const auto asked = [&](std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::vector<Aspect> requested;
  for (std::size_t a = 0; a < kAspectCount; ++a)
    if (aspects()[a].on_request && (asked(aspects()[a].name) || asked("all")))
      requested.push_back(static_cast<Aspect>(a));
  return requested;
}

void check_names(const char* option, const std::vector<std::string>& names,
                 const std::vector<std::string>& known, bool few) {
  for (const std::string& name : names)
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw UserError(
          fmt::format("audit: {}: unknown \"{}\"{}", option, name,
                      few ? did_you_mean_or_known(name, known) : did_you_mean(name, known)));
}

// Recognises what a file of the battery may be written for, besides what an audit judges.
bool is_rank_objective(const std::string& objective) {
  return objective.starts_with("rank:") && objective.size() > 5 && objective.size() < 10 &&
         std::all_of(objective.begin() + 5, objective.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

bool has_mode(const std::string& subject) {
  return std::ranges::any_of(parts_of(subject),
                             [](const SubjectPart& part) { return part.mode.has_value(); });
}

void check(const AuditOptions& options) {
  if (const std::string why = problem_with_subject(options.subject); !why.empty())
    throw UserError("audit: " + why);
  std::vector<std::string> kinds;
  for (const CollectiveTraits& kind : kCollectives) kinds.emplace_back(kind.name);
  check_names("--collective", options.collectives, kinds, true);
  check_names("--op", options.ops, {kReduceOpNames.begin(), kReduceOpNames.end()}, true);
  if (!options.without.empty())
    check_names("--without", options.without, parts_of_an_audit(), false);
  const bool is_of_a_rank = !options.battery.empty() && is_rank_objective(options.objective);
  if (!options.objective.empty() && !is_of_a_rank)
    check_names("--objective", {options.objective},
                {std::begin(kAuditObjectives), std::end(kAuditObjectives)}, true);
  if (!options.aspects.empty() && has_mode(options.subject))
    throw UserError(fmt::format("audit: \"{}\" has a mode already: leave --aspects or the '@' out",
                                options.subject));
}

// ---- what is written

// Returns "all_reduce_product", or "all_reduce_product-all_reduce_coalesced" if there are several
// functions for it.
std::string file_name(const std::string& row, const std::string& function, bool is_one_of_several) {
  std::string name = row;
  if (is_one_of_several) name += "-" + name_in(function);
  std::replace(name.begin(), name.end(), ' ', '_');
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

nlohmann::ordered_json scenario_of(const Trial& trial, const std::string& subject) {
  auto scenario = nlohmann::ordered_json::parse(trial.scenario);
  scenario["subjects"] = {{subject, "match"}};
  return scenario;
}

// Writes the smallest failing case of each collective, for `distgrad run`.
void write_failures(const std::vector<Judgement>& judgements, const std::string& folder) {
  std::filesystem::create_directories(folder);
  for (const Judgement& j : judgements) {
    if (!j.smallest_failure) continue;
    const bool several =
        std::any_of(judgements.begin(), judgements.end(), [&](const Judgement& other) {
          return other.name == j.name && other.function != j.function;
        });
    const std::string file = folder + "/" + file_name(j.name, j.function, several) + ".json";
    write_file_atomically(file,
                          scenario_text(scenario_of(j.smallest_failure->trial,
                                                    j.smallest_failure->result.which.subject)));
    say("{}: run it with  distgrad run --allow-code {}\n", j.name, file);
  }
}

// Writes a folder for each line of the audit, or the folder itself if there is one line.
void write_battery(const std::vector<AuditRow>& rows, const std::string& folder) {
  for (const AuditRow& row : rows) {
    const std::string name = row_name(row.kind, row.op);
    const auto alike = std::count_if(rows.begin(), rows.end(), [&](const AuditRow& other) {
      return row_name(other.kind, other.op) == name;
    });
    const std::filesystem::path place =
        rows.size() == 1 ? std::filesystem::path(folder)
                         : std::filesystem::path(folder) / file_name(name, row.function, alike > 1);
    std::filesystem::create_directories(place);
    for (const Trial& trial : row.trials)
      write_file_atomically((place / (trial.name + ".json")).string(),
                            scenario_text(scenario_of(trial, subject_of(row, trial))));
  }
}

// Returns false if a file cannot be written.
bool write_audit_reports(const std::vector<ReportFile>& files,
                         const std::vector<Judgement>& judgements, const TableOptions& table,
                         const std::string& command, bool broken_off) {
  Report report = audit_report(judgements, table.unusable);
  report.command = command;
  report.torch = kTorchVersion;
  report.printed = audit_text(judgements, table);
  report.summary.elapsed_s = table.elapsed_s;
  FormatContext context = format_context(command);
  context.ended_early = table.ended_early;
  context.broken_off = broken_off;
  return write_reports(files, report, context);
}

// ---- the command

ExitCode exit_code(const std::vector<Judgement>& judgements, bool is_strictly_right) {
  const bool any_offered = std::any_of(judgements.begin(), judgements.end(),
                                       [](const Judgement& j) { return j.offered; });
  const bool any_wrong = std::any_of(judgements.begin(), judgements.end(), [](const Judgement& j) {
    return j.wrong || j.needs_one_loss();
  });
  if (any_wrong) return ExitCode::kNotAsExpected;
  if (!any_offered) return ExitCode::kNothingRan;
  return is_strictly_right ? ExitCode::kAsExpected : ExitCode::kNotAsExpected;
}

// Says why rows are missing, or returns "". `signal` interrupted the audit, or is 0.
std::string early_end(int signal, const std::string& failure, std::size_t judged,
                      std::size_t rows) {
  if (signal == 0 && failure.empty()) return {};
  const std::string why = signal != 0 ? interruption_text(signal) : failure;
  return fmt::format("{}; {} of {} collectives were finished", why, judged, rows);
}

void add_options(CLI::App& app, AuditOptions& options) {
  const auto list = [&](const char* name, std::vector<std::string>& values, const char* type,
                        const char* help) {
    app.add_option(name, values, help)->type_name(type)->delimiter(',')->allow_extra_args(false);
  };
  app.add_option(
         "SUBJECT", options.subject,
         "what to test: python:FILE.py, python:FILE.py:NAME, python:MODULE, KIND=SUBJECT, or a "
         "name of `distgrad list subjects`")
      ->required();
  list("--collective", options.collectives, "KIND,...", "only these");
  list("--op", options.ops, "OP,...", "only these, of collectives that reduce");
  app.add_option("--objective", options.objective,
                 "judge by this one alone: sum, mean or replicated")
      ->type_name("OBJECTIVE");
  app.add_flag("--strict", options.strict,
               "exit code 1 also for what is refused, disputed, not offered");
  list("--without", options.without, "NAME,...", "leave out these aspects (columns) or cases");
  list("--aspects", options.aspect_names, "ASPECT,...",
       "also: checkpoint, autocast, async, compile, double-backward; all");
  app.add_option("--world-size", options.world_size, "every case on so many ranks")
      ->type_name("N")
      ->check(CLI::Range(1, 64).description(""));
  app.add_option("--python", options.python, "the interpreter for a subject in Python")
      ->type_name("PATH");
  app.add_option("--out", options.out, "write the smallest failing cases there, as scenario files")
      ->type_name("DIR");
  app.add_option("--battery", options.battery,
                 "write all cases there, as scenario files, and run none")
      ->type_name("DIR");
  app.add_option("--json", options.json, "write the results; - is standard output")
      ->type_name("FILE");
}

}  // namespace

ExitCode audit_command(const Arguments& arguments) {
  CLI::App app("Run one implementation through a battery for every collective that it offers.",
               "distgrad audit");
  AuditOptions options;
  add_options(app, options);
  const ReportOptions report_options(app, "--json");
  const GuardOptions guards(app);
  describe(app, kAuditExamples);
  if (const auto done = parse_arguments(app, arguments)) return *done;
  const std::vector<ReportFile> files = report_options.files("audit");
  guards.apply("audit");
  options.aspects = requested_aspects(options.aspect_names);
  check(options);

  const auto started = std::chrono::steady_clock::now();
  const Interrupts interrupts;
  Interpreters interpreters;
  StatusLine status(STDERR_FILENO, ::isatty(STDERR_FILENO) == 1, 0);
  const AuditPlan plan = plan_of(options, interpreters,
                                 [&](double s) { status.say(importing_text(options.subject, s)); });
  if (const int signal = interrupted_by()) return interrupted(signal);
  if (!options.battery.empty()) {
    status.erase();
    write_battery(plan.rows, options.battery);
    return ExitCode::kAsExpected;
  }
  Audit audit(options, plan, interpreters, status);  // the judgements point to its results
  const std::vector<Judgement> judgements = audit.run();
  const int signal = interrupted_by();

  TableOptions table{
      .subject = options.subject,
      .elapsed_s =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count(),
      .requested = options.aspects,
      .left_out = options.without,
      .lacking = plan.lacking,
      .not_asked = plan.not_asked,
      .unusable = plan.unusable,
      .ended_early = early_end(signal, audit.failure(), judgements.size(), plan.rows.size())};
  const bool is_whole = table.ended_early.empty();
  table.width = terminal_width(table.width);
  table.unusable.insert(table.unusable.end(), audit.unusable().begin(), audit.unusable().end());
  const std::string complaint =
      options.strict && is_whole
          ? strict_complaint(judgements,
                             tally_of(judgements, table.unusable.size(), table.lacking.size()),
                             options.objective)
          : "";
  if (options.json != "-" && !prints_report(files) && (is_whole || !judgements.empty()))
    say("{}{}", audit_text(judgements, table), complaint);
  if (!options.json.empty()) write_file_atomically(options.json, audit_json(judgements, table));
  if (!options.out.empty()) write_failures(judgements, options.out);
  const bool all_written =
      write_audit_reports(files, judgements, table, command_text("audit", arguments), !is_whole);
  if (!is_whole) {
    complain("distgrad: {}\n", visible_text(table.ended_early, Lines::kKept));
    return signal != 0 ? exit_code_of_signal(signal) : ExitCode::kBroken;
  }
  return all_written ? exit_code(judgements, complaint.empty()) : ExitCode::kUserError;
}

}  // namespace distgrad
