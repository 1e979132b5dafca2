// Runs the cases of an audit.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "audit/audit_rows.h"
#include "audit/judgement.h"
#include "report/status_line.h"
#include "verify/verify.h"

namespace distgrad {

// "all_gather=python:losses.py:GatherLayer+all_reduce=in_place": what runs a trial of the row.
std::string subject_of(const AuditRow& row, const Trial& trial);

// The first trials of each row alone, on two and on three ranks, and then the others of the rows in
// which anything came of them: what is not offered, or raises or hangs always, is not asked 50
// times.
class Audit {
 public:
  // `plan` and `options` must outlive it.
  Audit(const AuditOptions& options, const AuditPlan& plan, Interpreters& interpreters,
        StatusLine& status);

  // The judgements point to results that this owns. After an interrupt (interrupted_by()) or a
  // failure() they are of the rows alone whose trials were all through. Throws UserError where no
  // function can be called.
  std::vector<Judgement> run();

  // Why it ended before its time: ranks that are lost, programs that do not start; or empty.
  const std::string& failure() const { return failure_; }

  // Why functions could not be called, of which there is no judgement.
  const std::vector<std::string>& unusable() const { return unusable_; }

 private:
  // A row's trials as cases, in their order.
  struct RowCases {
    std::vector<std::unique_ptr<Scenario>> scenarios;  // the cases point to these
    std::vector<Case> cases;
  };

  RowCases cases_of(const AuditRow& row) const;
  void choose_measured();
  bool is_hopeless(std::size_t row, const Trial& trial) const;
  bool is_finished(std::size_t row) const;
  bool was_cut_short() const;
  void shorten_timeouts();
  std::vector<Judgement> judge();
  void note_problem(const std::string& subject, const std::string& message);
  template <class IsAsked>
  void batch(const IsAsked& is_asked);

  const AuditOptions& options_;
  const std::vector<AuditRow>& rows_;
  StatusLine& status_;
  std::vector<RowCases> made_;
  std::vector<std::vector<std::optional<TrialResult>>>
      results_;  // by row and trial; what was not tried lacks
  std::vector<std::vector<TrialResult>>
      judged_;  // by row, in the battery's order: judgements point to these
  std::vector<std::string> measured_case_;    // by row, its name: of one of the first trials
  std::map<std::string, Measured> measured_;  // by case
  std::vector<bool> is_unusable_;             // by row
  std::vector<std::string> unusable_;
  std::string failure_;
  std::size_t done_ = 0;
  std::optional<Verifier> verifier_;
};

}  // namespace distgrad
