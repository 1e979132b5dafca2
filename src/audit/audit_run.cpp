#include "audit/audit_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/interrupts.h"
#include "base/version.h"
#include "judge/call_findings.h"
#include "model/subject_text.h"
#include "scenario/cases.h"
#include "scenario/parse.h"

namespace distgrad {
namespace {

// Shows a measured formula. One that is right does not explain another, wrong case, so it takes
// that case's, if there is one. If there is none and its own case is right, it stays: the row
// follows it, except for what breaks.
void take_measured(Judgement& j, const Measured& of_first, bool is_first_right) {
  j.measured = of_first;
  if (!j.wrong || of_first.formula != of_first.right || !j.smallest_failure) return;
  const std::vector<Finding>& findings = j.smallest_failure->result.findings;
  const auto of_failure = findings.empty() ? std::nullopt : findings.front().measured;
  if (of_failure || !is_first_right) j.measured = of_failure;
  j.is_measured_elsewhere = !of_failure && is_first_right;
}

bool is_right(const std::vector<TrialResult>& results, const std::string& name) {
  return std::any_of(results.begin(), results.end(), [&](const TrialResult& t) {
    return t.result.which.id == name && t.result.verdict == Verdict::kMatch;
  });
}

bool is_dead_end(const CaseResult& r) {
  return r.verdict == Verdict::kSkipped || r.verdict == Verdict::kError;
}

// Collects the results of a batch of cases, by their names.
class Collector : public VerifyListener {
 public:
  // `wanted` names the cases whose call's backward is to be measured.
  Collector(StatusLine& status, std::size_t before, const std::vector<std::string>& wanted)
      : status_(status), before_(before), wanted_(wanted.begin(), wanted.end()) {}
  void on_conclusion(const Conclusion& c) override {
    if (!wanted_.contains(c.which.id) || !c.run || is_dead_end(c.result)) return;
    for (const Step& step : c.asked.program.steps) {
      if (!step.collective()) continue;
      if (auto call = measured_call(c.machine, c.asked.program, step.name))
        measured.emplace(c.which.id, std::move(call->measured));
      return;
    }
  }
  void on_result(CaseResult result) override {
    std::string id = result.which.id;
    results.emplace(std::move(id), std::move(result));
  }
  void on_invalid(InvalidFile invalid) override {
    problems.emplace_back(invalid.file, invalid.message);
  }
  void on_progress(std::size_t done, std::size_t failed) override {
    status_.update(before_ + done, failed);
  }
  void on_loading(const std::string& subject, double seconds) override {
    status_.say(importing_text(subject, seconds));
  }

  std::map<std::string, CaseResult> results;
  std::map<std::string, Measured> measured;
  std::vector<std::pair<std::string, std::string>> problems;  // subject, message

 private:
  StatusLine& status_;
  std::size_t before_;
  std::set<std::string> wanted_;
};

}  // namespace

std::string subject_of(const AuditRow& row, const Trial& trial) {
  // A subject with a mode or a part of its own is named for its collective; a library that runs
  // everything stays as it is.
  const bool is_whole = !is_foreign_code(row.subject);
  std::string subject = row.subject;
  if (!is_whole || trial.needs_all_reduce)
    subject = fmt::format("{}={}", traits(row.kind).name, subject);
  if (!trial.mode.empty()) subject = subject_in_mode(subject, row.kind, trial.mode);
  return trial.needs_all_reduce ? subject + "+all_reduce=in_place" : subject;
}

Audit::Audit(const AuditOptions& options, const AuditPlan& plan, Interpreters& interpreters,
             StatusLine& status)
    : options_(options), rows_(plan.rows), status_(status) {
  std::vector<Case> all;
  for (const AuditRow& row : rows_) {
    made_.push_back(cases_of(row));
    results_.emplace_back(row.trials.size());
    all.insert(all.end(), made_.back().cases.begin(), made_.back().cases.end());
  }
  is_unusable_.resize(rows_.size());
  is_refused_.resize(rows_.size());
  choose_measured();
  status_.expect(all.size());
  verifier_.emplace(all, VerifyOptions{.interpreters = &interpreters});
}

Audit::RowCases Audit::cases_of(const AuditRow& row) const {
  RowCases made;
  for (const Trial& trial : row.trials) {
    std::string where = fmt::format("{}/{}", row_name(row.kind, row.op), trial.name);
    std::replace(where.begin(), where.end(), ' ', '-');
    made.scenarios.push_back(std::make_unique<Scenario>(parse_scenario(trial.scenario, where)));
    Overrides overrides;
    overrides.subjects = {subject_of(row, trial)};
    if (!options_.python.empty()) overrides.pythons = {options_.python};
    made.cases.push_back(expand(*made.scenarios.back(), overrides, kTorchVersion).at(0));
  }
  return made;
}

// Chooses, among the first trials, one with the most ranks; the ranks have their own losses if that
// makes a difference.
void Audit::choose_measured() {
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    const Case* chosen = nullptr;
    for (std::size_t t = 0; t < rows_[r].trials.size(); ++t)
      if (rows_[r].trials[t].is_first &&
          (!chosen || made_[r].cases[t].world_size > chosen->world_size))
        chosen = &made_[r].cases[t];
    measured_case_.push_back(chosen ? chosen->id : "");
  }
}

std::vector<Judgement> Audit::run() {
  batch([&](std::size_t r, std::size_t t) { return rows_[r].trials[t].is_first; });
  if (!was_cut_short()) {
    refuse_other_ops();
    shorten_timeouts();
    batch([&](std::size_t r, std::size_t t) {
      return !results_[r][t] && !is_hopeless(r, rows_[r].trials[t]);
    });
  }
  status_.erase();
  return judge();
}

std::vector<Judgement> Audit::judge() {
  std::vector<Judgement> judgements;
  judged_.resize(rows_.size());
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    if (is_unusable_[r] || (was_cut_short() && !is_finished(r))) continue;
    for (std::optional<TrialResult>& t : results_[r])
      if (t) judged_[r].push_back(std::move(*t));
    judgements.push_back(
        judge_collective(rows_[r].kind, rows_[r].op, judged_[r], options_.objective));
    judgements.back().function = rows_[r].function;
    if (const auto found = measured_.find(measured_case_[r]); found != measured_.end())
      take_measured(judgements.back(), found->second, is_right(judged_[r], measured_case_[r]));
  }
  if (options_.objective.empty() && options_.collectives.empty() && !was_cut_short())
    note_other_conventions(judgements);
  return judgements;
}

// Excludes only the function whose call shows a user's mistake, if there are others.
void Audit::note_problem(const std::string& subject, const std::string& message) {
  if (std::find(unusable_.begin(), unusable_.end(), message) == unusable_.end())
    unusable_.push_back(message);
  for (std::size_t r = 0; r < rows_.size(); ++r)
    is_unusable_[r] =
        is_unusable_[r] || std::any_of(made_[r].cases.begin(), made_[r].cases.end(),
                                       [&](const Case& c) { return c.subject == subject; });
  if (std::find(is_unusable_.begin(), is_unusable_.end(), false) == is_unusable_.end())
    throw UserError(message);
}

// A function without a parameter for the op is tried as a sum, and as each other op that its first
// results are. If there is such an op and the sum is another one, it is not meant to be a sum.
void Audit::refuse_other_ops() {
  constexpr std::string_view kLacksOp = "no parameter for the op";
  constexpr std::string_view kAnother = "does not compute";
  const auto refused = [&](std::size_t row, std::string_view words) -> const TrialResult* {
    for (const auto& t : results_[row])
      if (t && t->result.verdict == Verdict::kSkipped &&
          t->result.why.find(words) != std::string::npos)
        return &*t;
    return nullptr;
  };
  for (std::size_t r = 0; r < rows_.size(); ++r)
    if (const TrialResult* t = refused(r, kAnother)) refuse(r, std::string(t->result.why));
  for (std::size_t sum = 0; sum < rows_.size(); ++sum) {
    const bool is_forward = std::ranges::all_of(results_[sum], [](const auto& t) {
      return !t || (!t->result.findings.empty() && t->result.findings.front().rule == "forward");
    });
    if (!traits(rows_[sum].kind).takes_op || rows_[sum].op != ReduceOp::kSum || !is_forward)
      continue;
    bool lacks_op = false;
    std::string_view computed;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (r == sum || rows_[r].kind != rows_[sum].kind || rows_[r].subject != rows_[sum].subject)
        continue;
      if (refused(r, kLacksOp))
        lacks_op = true;
      else
        computed = name_of(rows_[r].op);
    }
    if (lacks_op && !computed.empty())
      refuse(sum,
             fmt::format("the function has no parameter for the op and computes the {}", computed));
  }
}

void Audit::refuse(std::size_t row, const std::string& why) {
  is_refused_[row] = true;
  for (auto& t : results_[row])
    if (t) {
      t->result.verdict = Verdict::kSkipped;
      t->result.why = why;
      t->result.findings.clear();
    }
}

// A call that was refused along dim 0 may be meant for another dim.
bool Audit::is_hopeless(std::size_t row, const Trial& trial) const {
  if (is_unusable_[row] || is_refused_[row]) return true;
  bool any = false, all_refused = true;
  for (const std::optional<TrialResult>& t : results_[row]) {
    if (!t) continue;
    if (!is_dead_end(t->result)) return false;
    any = true;
    all_refused = all_refused && t->result.verdict == Verdict::kSkipped;
  }
  return any && !(trial.aspect == Aspect::kDim && all_refused);
}

bool Audit::was_cut_short() const { return interrupted_by() || !failure_.empty(); }

// Returns true if the row can produce no more results.
bool Audit::is_finished(std::size_t row) const {
  const std::vector<Trial>& trials = rows_[row].trials;
  for (std::size_t t = 0; t < trials.size(); ++t)
    if (!results_[row][t] && (trials[t].is_first || !is_hopeless(row, trials[t]))) return false;
  return true;
}

// Shortens timeouts, since whatever is slow once has been by now: a case that takes many times as
// long as the first ones hangs.
void Audit::shorten_timeouts() {
  constexpr double kLeastTimeoutS = 10, kTimesTheFirst = 20;
  double slowest = 0;
  for (const auto& row : results_)
    for (const auto& t : row)
      if (t && !is_dead_end(t->result)) slowest = std::max(slowest, t->result.elapsed_s);
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (std::size_t t = 0; t < rows_[r].trials.size(); ++t) {
      if (row_of(rows_[r].trials[t].aspect).on_request) continue;
      double& timeout = made_[r].cases[t].timeout_s;
      timeout = std::min(timeout, std::max(kLeastTimeoutS, kTimesTheFirst * slowest));
    }
}

template <class IsAsked>
void Audit::batch(const IsAsked& is_asked) {
  std::vector<Case> cases;
  std::vector<std::pair<std::size_t, std::size_t>> places;  // row, trial
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    for (std::size_t t = 0; t < rows_[r].trials.size(); ++t) {
      if (!is_asked(r, t)) continue;
      cases.push_back(made_[r].cases[t]);
      places.emplace_back(r, t);
    }
  }
  Collector collector(status_, done_, measured_case_);
  try {
    verifier_->verify(cases, collector);
  } catch (const SystemError& e) {  // finished cases are judged nevertheless
    failure_ = e.what();
  }
  done_ += cases.size();
  measured_.merge(collector.measured);
  for (const auto& [subject, message] : collector.problems) note_problem(subject, message);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto [r, t] = places[i];
    const auto found = collector.results.find(cases[i].id);
    if (found != collector.results.end())
      results_[r][t] = {rows_[r].trials[t], std::move(found->second)};
  }
}

}  // namespace distgrad
