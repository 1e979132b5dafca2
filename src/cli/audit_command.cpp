// distgrad audit [OPTION...] SUBJECT
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "audit/judgement.h"
#include "audit/table.h"
#include "base/atomic_file.h"
#include "base/did_you_mean.h"
#include "base/error.h"
#include "base/interrupts.h"
#include "base/version.h"
#include "cli/command.h"
#include "cli/parse_arguments.h"
#include "cli/verify.h"
#include "model/libraries.h"
#include "model/subject_text.h"
#include "report/status_line.h"
#include "scenario/cases.h"
#include "scenario/parse.h"
#include "scenario/subject_name.h"

namespace distgrad {
namespace {

struct AuditOptions {
  std::string subject, objective, python, out, json;
  std::vector<std::string> collectives, aspect_names;
  std::vector<Aspect> aspects;  // those of aspect_names
};

constexpr const char* kExamples =
    "Examples:\n"
    "  distgrad audit torch_nn\n"
    "  distgrad audit python:torch.distributed.nn.functional\n"
    "  distgrad audit all_gather=python:my_layers.py:GatherLayer.apply --out failing\n"
    "  distgrad audit all_gather=python:layers.py:Gather.apply --aspects checkpoint,double-backward\n";

std::string choices_hint(const std::string& text, const std::vector<std::string>& known) {
  const std::string hint = did_you_mean(text, known);
  return hint.empty() ? fmt::format("; it is {}", fmt::join(known, ", ")) : hint;
}

// --aspects, in the order of the columns; "all" is every one.
std::vector<Aspect> requested_aspects(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const AspectRow& row : aspects())
    if (row.on_request) known.emplace_back(row.name);
  known.emplace_back("all");
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const auto always = std::find_if(aspects().begin(), aspects().end(), [&](const AspectRow& row) { return row.name == name; });
    throw UserError(always != aspects().end()
                        ? fmt::format("audit: --aspects: {} is tried anyway; on request: {}", name, fmt::join(known, ", "))
                        : fmt::format("audit: --aspects: unknown \"{}\"{}", name, choices_hint(name, known)));
  }
  const auto asked = [&](std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  std::vector<Aspect> requested;
  for (std::size_t a = 0; a < kAspectCount; ++a)
    if (aspects()[a].on_request && (asked(aspects()[a].name) || asked("all"))) requested.push_back(static_cast<Aspect>(a));
  return requested;
}

void check(const AuditOptions& options) {
  if (const std::string why = problem_with_subject(options.subject); !why.empty()) throw UserError("audit: " + why);
  const std::vector<std::string> objectives = {"sum", "mean", "replicated"};
  if (!options.objective.empty() &&
      std::find(objectives.begin(), objectives.end(), options.objective) == objectives.end())
    throw UserError(fmt::format("audit: --objective: unknown \"{}\"{}", options.objective,
                                choices_hint(options.objective, objectives)));
  std::vector<std::string> kinds;
  for (const CollectiveTraits& kind : kCollectives) kinds.emplace_back(kind.name);
  for (const std::string& name : options.collectives)
    if (!collective_named(name))
      throw UserError(fmt::format("audit: --collective: unknown \"{}\"{}", name, choices_hint(name, kinds)));
}

// A subject without a row, or function, for copy or slice has the adjoint, which is none of its doing. Whether code has one
// only the ranks know: --collective asks for it.
bool offers_of_its_own(const std::string& subject, CollectiveKind kind) {
  if (kind != CollectiveKind::kCopy && kind != CollectiveKind::kSlice) return true;
  if (is_reference(subject)) return true;
  const auto rows = library_rows();
  return std::any_of(rows.begin(), rows.end(),
                     [&](const LibraryRow& row) { return row.subject == subject && row.kind == kind; });
}

bool has_mode(const std::string& subject) {
  const auto parts = parts_by_kind(subject);
  if (parts.empty()) return is_python_subject(subject) && split_mode(subject).second;
  return std::any_of(parts.begin(), parts.end(), [](const auto& part) { return has_mode(part.second); });
}

// The collectives that are asked for, or that the subject is given for.
std::vector<CollectiveKind> kinds_of(const AuditOptions& options) {
  std::vector<CollectiveKind> kinds;
  for (const std::string& name : options.collectives) kinds.push_back(*collective_named(name));
  if (kinds.empty())
    for (const auto& [kind, subject] : parts_by_kind(options.subject)) kinds.push_back(kind);
  if (kinds.empty())
    for (const CollectiveTraits& kind : kCollectives)
      if (offers_of_its_own(options.subject, kind.kind)) kinds.push_back(kind.kind);
  return kinds;
}

// One collective and op.
struct Row {
  CollectiveKind kind;
  ReduceOp op;
  std::vector<Trial> trials;
};

// Rule sets and libraries know no checkpoint, autocast and so on.
std::vector<Aspect> tried_of(const AuditOptions& options, CollectiveKind kind) {
  std::vector<Aspect> tried = options.aspects;
  if (!is_python_subject(subject_for(options.subject, kind)))
    std::erase_if(tried, [](Aspect aspect) { return aspects()[static_cast<std::size_t>(aspect)].of_code; });
  return tried;
}

std::vector<Row> rows_of(const AuditOptions& options) {
  std::vector<Row> rows;
  for (const CollectiveKind kind : kinds_of(options)) {
    const int ops = traits(kind).takes_op ? static_cast<int>(kReduceOpNames.size()) : 1;
    for (int op = 0; op < ops; ++op)
      rows.push_back({kind, static_cast<ReduceOp>(op), battery(kind, static_cast<ReduceOp>(op), tried_of(options, kind))});
  }
  return rows;
}

// A row's trials as cases, in their order.
struct RowCases {
  std::vector<std::unique_ptr<Scenario>> scenarios;  // the cases point to these
  std::vector<Case> cases;
};

std::string subject_of(const AuditOptions& options, const Row& row, const Trial& trial) {
  if (!trial.mode.empty()) return subject_in_mode(options.subject, row.kind, trial.mode);
  if (!trial.needs_all_reduce) return options.subject;
  return fmt::format("{}={}+all_reduce=in_place", traits(row.kind).name, subject_for(options.subject, row.kind));
}

RowCases cases_of(const AuditOptions& options, const Row& row) {
  RowCases made;
  for (const Trial& trial : row.trials) {
    std::string where = fmt::format("{}/{}", row_name(row.kind, row.op), trial.name);
    std::replace(where.begin(), where.end(), ' ', '-');
    made.scenarios.push_back(std::make_unique<Scenario>(parse_scenario(trial.scenario, where)));
    Overrides overrides;
    overrides.subjects = {subject_of(options, row, trial)};
    if (!options.python.empty()) overrides.pythons = {options.python};
    made.cases.push_back(expand(*made.scenarios.back(), overrides, kTorchVersion).at(0));
  }
  return made;
}

// What comes of a batch of cases, by their names.
class Collector : public VerifyListener {
 public:
  Collector(StatusLine& status, std::size_t before) : status_(status), before_(before) {}
  void on_result(CaseResult result) override {
    std::string id = result.which.id;
    results.emplace(std::move(id), std::move(result));
  }
  void on_invalid(InvalidFile invalid) override { problem = invalid.message; }
  void on_progress(std::size_t done, std::size_t failed) override { status_.update(before_ + done, failed); }

  std::map<std::string, CaseResult> results;
  std::string problem;

 private:
  StatusLine& status_;
  std::size_t before_;
};

bool is_dead_end(const CaseResult& r) { return r.verdict == Verdict::kSkipped || r.verdict == Verdict::kError; }

// Two trials of each row alone, on two and on three ranks, and then the others of the rows in which anything came of them:
// what is not offered, or raises or hangs always, is not asked 50 times.
class Audit {
 public:
  Audit(const AuditOptions& options, Interpreters& interpreters)
      : options_(options), rows_(rows_of(options)) {
    std::vector<Case> all;
    for (const Row& row : rows_) {
      made_.push_back(cases_of(options, row));
      results_.emplace_back(row.trials.size());
      all.insert(all.end(), made_.back().cases.begin(), made_.back().cases.end());
    }
    total_ = all.size();
    verifier_.emplace(all, VerifyOptions{.interpreters = &interpreters});
  }

  std::vector<Judgement> run() {
    StatusLine status(STDERR_FILENO, ::isatty(STDERR_FILENO) == 1, total_);
    batch([&](std::size_t r, std::size_t t) { return is_first(rows_[r].trials[t]); }, status);
    if (!interrupted_by()) {
      expect_haste();
      batch([&](std::size_t r, std::size_t t) { return !results_[r][t] && !is_hopeless(r, rows_[r].trials[t]); }, status);
    }
    status.erase();
    std::vector<Judgement> judgements;
    judged_.resize(rows_.size());
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      for (std::optional<TrialResult>& t : results_[r])
        if (t) judged_[r].push_back(std::move(*t));
      judgements.push_back(judge_collective(rows_[r].kind, rows_[r].op, judged_[r], options_.objective));
    }
    if (options_.objective.empty() && options_.collectives.empty()) judge_together(judgements);
    return judgements;
  }

 private:
  static constexpr double kLeastTimeoutS = 10, kTimesTheFirst = 20;

  static bool is_first(const Trial& trial) {
    return trial.loss == Trial::Loss::kSum && (trial.name == "2-ranks" || trial.name == "3-ranks");
  }

  // What was refused along dim 0 may be meant for another dim.
  bool is_hopeless(std::size_t row, const Trial& trial) const {
    bool any = false, all_refused = true;
    for (const std::optional<TrialResult>& t : results_[row]) {
      if (!t) continue;
      if (!is_dead_end(t->result)) return false;
      any = true;
      all_refused = all_refused && t->result.verdict == Verdict::kSkipped;
    }
    return any && !(trial.aspect == Aspect::kDim && all_refused);
  }

  // By now whatever is slow once, such as an import, has been: a case that takes many times as long as the first ones hangs.
  void expect_haste() {
    double slowest = 0;
    for (const auto& row : results_)
      for (const auto& t : row)
        if (t && !is_dead_end(t->result)) slowest = std::max(slowest, t->result.elapsed_s);
    for (std::size_t r = 0; r < rows_.size(); ++r)
      for (std::size_t t = 0; t < rows_[r].trials.size(); ++t) {
        if (aspects()[static_cast<std::size_t>(rows_[r].trials[t].aspect)].on_request) continue;
        double& timeout = made_[r].cases[t].timeout_s;
        timeout = std::min(timeout, std::max(kLeastTimeoutS, kTimesTheFirst * slowest));
      }
  }

  template <class IsAsked>
  void batch(const IsAsked& is_asked, StatusLine& status) {
    std::vector<Case> cases;
    std::vector<std::pair<std::size_t, std::size_t>> places;  // row, trial
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      for (std::size_t t = 0; t < rows_[r].trials.size(); ++t) {
        if (!is_asked(r, t)) continue;
        cases.push_back(made_[r].cases[t]);
        places.emplace_back(r, t);
      }
    }
    Collector collector(status, done_);
    verifier_->verify(cases, collector);
    done_ += cases.size();
    if (!collector.problem.empty()) throw UserError(collector.problem);
    if (interrupted_by()) return;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const auto [r, t] = places[i];
      const auto found = collector.results.find(cases[i].id);
      if (found != collector.results.end()) results_[r][t] = {rows_[r].trials[t], std::move(found->second)};
    }
  }

  const AuditOptions& options_;
  std::vector<Row> rows_;
  std::vector<RowCases> made_;
  std::vector<std::vector<std::optional<TrialResult>>> results_;  // by row and trial; what was not tried lacks
  std::vector<std::vector<TrialResult>> judged_;                  // by row, in the battery's order: judgements point to these
  std::size_t total_ = 0, done_ = 0;
  std::optional<Verifier> verifier_;
};

// The smallest failing case of each collective, as `distgrad run` takes it.
void write_failures(const std::vector<Judgement>& judgements, const std::string& folder) {
  std::filesystem::create_directories(folder);
  for (const Judgement& j : judgements) {
    if (!j.smallest_failure) continue;
    std::string name = j.name;
    std::replace(name.begin(), name.end(), ' ', '_');
    const std::string file = folder + "/" + name + ".json";
    std::string text = j.smallest_failure->trial.scenario;
    text.insert(text.rfind('\n') , fmt::format(",\n \"subjects\": {{ \"{}\": \"match\" }}", j.smallest_failure->result.which.subject));
    write_file_atomically(file, text + "\n");
    fmt::print("{}: run it with  distgrad run --allow-code {}\n", j.name, file);
  }
}

}  // namespace

ExitCode audit_command(const Arguments& arguments) {
  CLI::App app("Run one implementation through a battery for every collective that it offers.", "distgrad audit");
  AuditOptions options;
  app.add_option("SUBJECT", options.subject, "the implementation, as for `run --subject`")->required();
  app.add_option("--collective", options.collectives, "only these")->type_name("KIND,...")->delimiter(',')->allow_extra_args(false);
  app.add_option("--objective", options.objective, "sum, mean or replicated: right means for this one")->type_name("OBJECTIVE");
  app.add_option("--aspects", options.aspect_names, "also try: checkpoint, autocast, async, compile, double-backward; all")
      ->type_name("ASPECT,...")->delimiter(',')->allow_extra_args(false);
  app.add_option("--python", options.python, "the interpreter for a subject in Python")->type_name("PATH");
  app.add_option("--out", options.out, "write the smallest failing cases there, as scenario files")->type_name("DIR");
  app.add_option("--json", options.json, "write the results; - is standard output")->type_name("FILE");
  describe(app, kExamples);
  if (const auto done = parse_arguments(app, arguments)) return *done;
  check(options);
  options.aspects = requested_aspects(options.aspect_names);
  if (!options.aspects.empty() && has_mode(options.subject))
    throw UserError(fmt::format("audit: \"{}\" has a mode already: leave --aspects or the '@' out", options.subject));

  const auto started = std::chrono::steady_clock::now();
  const Interrupts interrupts;
  Interpreters interpreters;
  Audit audit(options, interpreters);  // the judgements point to its results
  const std::vector<Judgement> judgements = audit.run();
  if (const int signal = interrupted_by()) {
    fmt::print(stderr, "distgrad: interrupted\n");
    return static_cast<ExitCode>(128 + signal);  // as shells say it
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;

  const TableOptions table{.subject = options.subject, .elapsed_s = elapsed.count(), .requested = options.aspects};
  if (options.json != "-") fmt::print("{}", audit_text(judgements, table));
  if (!options.json.empty()) write_file_atomically(options.json, audit_json(judgements, table));
  if (!options.out.empty()) write_failures(judgements, options.out);
  const bool any_offered = std::any_of(judgements.begin(), judgements.end(), [](const Judgement& j) { return j.offered; });
  const bool any_wrong = std::any_of(judgements.begin(), judgements.end(), [](const Judgement& j) { return j.wrong; });
  return any_wrong ? ExitCode::kNotAsExpected : any_offered ? ExitCode::kAsExpected : ExitCode::kNothingRan;
}

}  // namespace distgrad
