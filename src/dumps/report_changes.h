// Two JSON reports of `distgrad run`, an earlier and a later one: what became worse, and what
// better.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dumps/comparison_report.h"
#include "model/report.h"

namespace distgrad::dumps {

struct ReportedCase {
  std::string id;
  std::string outcome;  // "mismatch: own-slice in step zs (all_gather)"
  enum class Status { kGood, kBad, kSkipped } status = Status::kGood;  // as expected, not, neither
  std::string subject = {};
  std::string file = {};
  std::string but_for_subject = {};  // what the case is besides: the same in a run of another one
  std::string backend = {};
  int world_size = 1;
  DType dtype = DType::kFloat64;
  Verdict verdict = Verdict::kMatch;
  std::optional<Finding> finding = {};  // the first; rule, collective, step and text of it
  std::optional<RankError> error = {};
};

struct ReportedRun {
  std::string path;
  std::vector<ReportedCase> cases;
};

struct CaseChange {
  std::string before, after;  // outcomes; empty: not there
  ReportedCase latest;        // of the later report; of the earlier one where it has vanished
};

struct ReportChanges {
  std::string before, after;
  std::string subjects;                   // "torch_nn, in_place": where each report has its own
  std::vector<CaseChange> newly_failing;  // bad now; good, skipped or not there before
  std::vector<CaseChange> fixed;          // bad before, good now
  std::vector<CaseChange> vanished;       // in the earlier report alone
  std::vector<CaseChange> no_longer_run;  // skipped now, not before
  std::vector<CaseChange> changed;        // good or bad in both, with another verdict or finding
  std::vector<CaseChange> added;          // in the later report alone, and not bad
  std::vector<CaseChange> unchanged;
  std::size_t still_failing = 0;

  bool is_worse() const { return !newly_failing.empty() || !vanished.empty(); }
};

// Whether the file is such a report, rather than a dump of gradients; false where it cannot be
// read.
bool is_report(const std::string& path);

// Throws UserError.
ReportedRun read_report(const std::string& path);

// Case by case, by their names. Where no subject is in both reports the names can only differ; then
// by all that a case is but for its subject.
ReportChanges changes_between(const ReportedRun& before, const ReportedRun& after);

std::string changes_text(const ReportChanges&, const ComparisonTextOptions&);
nlohmann::ordered_json changes_json(const ReportChanges&);

}  // namespace distgrad::dumps
