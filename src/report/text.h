// The report of a run for people: status first, then what happened; detail only where something is
// wrong, or with --verbose.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/report.h"
#include "report/case_text.h"

namespace distgrad {

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

}  // namespace distgrad
