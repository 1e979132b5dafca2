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

// Returns what runs a trial of the row:
// "all_gather=python:losses.py:GatherLayer+all_reduce=in_place".
std::string subject_of(const AuditRow& row, const Trial& trial);

// Runs the first trials of each row, on two and on three ranks, and then the others of rows that
// gave any result. So a function that is not offered, or always raises or hangs, is not tried 50
// times.
class Audit {
 public:
  // `plan` and `options` must outlive it.
  Audit(const AuditOptions& options, const AuditPlan& plan, Interpreters& interpreters,
        StatusLine& status);

  // Runs everything. The judgements point to results that this owns. After an interrupt
  // (interrupted_by()) or a failure() there are only those of rows that were finished. Throws
  // UserError if no function can be called.
  std::vector<Judgement> run();

  // Says why it ended early: ranks are lost, or programs do not start; or empty.
  const std::string& failure() const { return failure_; }

  // Says why functions could not be called; they have no judgement.
  const std::vector<std::string>& unusable() const { return unusable_; }

 private:
  // Holds a row's trials as cases, in their order.
  struct RowCases {
    std::vector<std::unique_ptr<Scenario>> scenarios;  // the cases point to these
    std::vector<Case> cases;
  };

  RowCases cases_of(const AuditRow& row) const;
  void choose_measured();
  void refuse_other_ops();
  void refuse(std::size_t row, const std::string& why);
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
  // Holds the results by row and trial; what was not tried is missing.
  std::vector<std::vector<std::optional<TrialResult>>> results_;
  // Holds what is judged by row, in the battery's order; judgements point to these.
  std::vector<std::vector<TrialResult>> judged_;
  std::vector<std::string> measured_case_;    // by row: the name of one of the first trials
  std::map<std::string, Measured> measured_;  // by case
  std::vector<bool> is_unusable_;             // by row
  std::vector<bool> is_refused_;              // by row: it is known to be meant for another op
  std::vector<std::string> unusable_;
  std::string failure_;
  std::size_t done_ = 0;
  std::optional<Verifier> verifier_;
};

}  // namespace distgrad
