// Writes the report of a run for people: status first, then what happened, with detail only if
// something is wrong, or with --verbose.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/report.h"
#include "report/case_text.h"

namespace distgrad {

// Reports a run as it goes on. add() takes the cases in their order and returns what can be printed
// by now. In a run of many cases, those of a file that came out as expected are one line ("36 cases
// as expected"). Of those that failed with one finding it shows the first few and counts the others
// at the end. Everything else always has a line of its own.
class TextReport {
 public:
  TextReport(TextOptions options, std::span<const Case> cases);

  std::string add(const CaseResult&);
  // Returns the rest, and the summary. `report` has the cases that were added, at least those that
  // are not as expected, vacuous or have notes.
  std::string finish(const Report& report);

 private:
  // Counts the cases that share one finding.
  struct SameFinding {
    int cases = 0;
    std::string worst;  // the name of the case that is furthest off
    std::pair<int, double> badness;
  };

  std::string folded_lines();
  std::string alike_lines() const;
  // Counts the case. Returns true if it is one of the first with its finding, which are shown.
  bool is_among_the_first(const CaseResult& wrong);

  TextOptions options_;
  bool folds_;
  std::size_t id_width_ = 0;
  std::string file_;                 // the file being folded
  std::vector<std::string> groups_;  // its "as expected", "skipped: WHY", in the order of
                                     // appearance
  std::map<std::string, int> group_sizes_;
  std::string detailed_;                         // its cases with a line of their own
  std::map<std::string, SameFinding> failures_;  // by finding_name()
};

// Writes the whole report at once.
std::string text_report(const Report&, const TextOptions&);

}  // namespace distgrad
