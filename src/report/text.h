// The report for people: status first, then what happened; detail only where something is wrong, or
// with --verbose.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/report.h"

namespace distgrad {

struct TextOptions {
  bool color = false;
  bool align = false;    // pad the cases' names to one width: for terminals; plain text stays the
                         // same when a case is added
  bool quiet = false;    // failures and the summary only
  bool verbose = false;  // every case in full: tables, bounds, composed collectives, notes, timing
  bool full = false;     // every rank and element
  bool simulated = false;  // no ranks ran: the truth is what is reported
  std::size_t width = 100;
  std::function<std::string(const Case&, int rank)> host_of =
      {};  // of a case's rank, where they are on several; empty: on one
  std::string again =
      "distgrad run";            // what the line "Again:" starts with; options that matter included
  bool again_names_case = true;  // else `again` is whole: nothing runs one case alone
};

// The report of a run as it goes on: add() takes the cases in their order and returns what can be
// printed by now. Where there are many cases, those of a file that came out as expected are one
// line ("36 cases as expected"). Of those that failed with one finding the first few are shown, and
// the others are counted at the end. Anything else always has a line of its own.
class TextReport {
 public:
  TextReport(TextOptions options, std::span<const Case> cases);

  std::string add(const CaseResult&);
  // The rest, and the summary. `report` holds the cases that were added, at least those that are
  // not as expected, vacuous or have notes.
  std::string finish(const Report& report);

 private:
  // One finding that many cases have.
  struct SameFinding {
    int cases = 0;
    std::string worst;  // the name of the case that is furthest off
    std::pair<int, double> badness;
  };

  std::string folded_lines();
  std::string alike_lines() const;
  // Counts it; whether it is one of the first with its finding, which are shown.
  bool is_among_the_first(const CaseResult& wrong);

  TextOptions options_;
  bool folds_;
  std::size_t id_width_ = 0;
  std::string file_;                 // the one being folded
  std::vector<std::string> groups_;  // its "as expected", "skipped: WHY", in the order they came up
  std::map<std::string, int> group_sizes_;
  std::string detailed_;                         // its cases that have a line of their own
  std::map<std::string, SameFinding> failures_;  // by finding_name()
};

// All at once.
std::string text_report(const Report&, const TextOptions&);

// "mismatch: own-slice in step zs (all_gather)"; ", as expected" after the verdict where that is
// worth saying. A line, but its words may come from a rank and hold anything else.
std::string outcome_text(const CaseResult&);

// One case: its line, and the detail where it calls for it.
std::string case_text(const CaseResult&, const TextOptions&, std::size_t id_width = 0);

}  // namespace distgrad
