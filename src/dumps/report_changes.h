// Two JSON reports of `distgrad run`, an earlier and a later one: what became worse, and what
// better.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace distgrad::dumps {

struct ReportedCase {
  std::string id;
  std::string outcome;  // "mismatch: own-slice in step zs (all_gather)"
  enum class Status { kGood, kBad, kSkipped } status = Status::kGood;  // as expected, not, neither
};

struct ReportedRun {
  std::string path;
  std::vector<ReportedCase> cases;
};

struct CaseChange {
  std::string id, before, after;  // outcomes; empty: not there
};

struct ReportChanges {
  std::string before, after;
  std::vector<CaseChange> newly_failing;  // bad now; good, skipped or not there before
  std::vector<CaseChange> fixed;          // bad before, good now
  std::vector<CaseChange> vanished;       // in the earlier report alone
  std::vector<CaseChange> no_longer_run;  // skipped now, not before
  std::vector<CaseChange> changed;        // good or bad in both, with another verdict or finding
  std::vector<CaseChange> added;          // in the later report alone, and not bad
  std::size_t still_failing = 0, unchanged = 0;

  bool is_worse() const { return !newly_failing.empty() || !vanished.empty(); }
};

// Whether the file is such a report, rather than a dump of gradients; false where it cannot be
// read.
bool is_report(const std::string& path);

// Throws UserError.
ReportedRun read_report(const std::string& path);

ReportChanges changes_between(const ReportedRun& before, const ReportedRun& after);

std::string changes_text(const ReportChanges&, bool full);
nlohmann::ordered_json changes_json(const ReportChanges&);

}  // namespace distgrad::dumps
