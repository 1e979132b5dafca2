// The finished records that reporters print. Source: command-line contract, "JSON report".
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/findings.h"
#include "model/run_result.h"
#include "model/scenario.h"
#include "model/verdict.h"

namespace distgrad {

// The backward of one collective call as the linear map x̄ = M ȳ that it was measured to be, beside
// the right one, M*. Where the ranks form several groups that do the same it is that of one group,
// else of the world.
struct Measured {
  std::string formula;  // "x̄_r = 4 ȳ_r"; of a map that is not linear what was seen instead
  std::string right;    // "x̄_r = Σ_k ȳ_k"
  bool linear = true;
  std::string shown_by;    // what that rests on: "a basis of 12 cotangents and 4 random ones"
  std::vector<int> ranks;  // of the world, in the order of the rows and columns below
  // [to][from], relative to M*; empty where one number for each pair of ranks does not do.
  std::vector<std::vector<double>> coefficients;
  // M and M* by element, row-major; empty where they were not measured whole. Row: an element of x̄
  // (the first rank's first, row-major, then the second's ...), column: one of ȳ.
  struct Matrices {
    std::vector<int> rows, columns;  // how many elements each of `ranks` has
    std::vector<double> measured, right;
  };
  std::optional<Matrices> matrices;
};

struct Finding {
  FindingName rule;        // "identity-backward"
  std::string collective;  // "all_reduce"; empty where none is blamed
  std::string step;
  std::vector<int> ranks;
  std::optional<double> factor;  // observed/truth where that is one number
  std::string text;  // what it means and what to change, for somebody who has read nothing of ours
  std::optional<Measured> measured = {};  // of a collective call that could be run again
};

struct GradientComparison {
  std::string input;
  std::string layout;  // as in the scenario format: "local", "replicate", {"shard": 0} spelled
                       // "shard:0", by axis "dp=replicate,tp=shard:0"
  std::vector<std::optional<Array>> truth_by_rank;  // local inputs
  std::optional<Array> truth_full;                  // the others
  std::vector<std::optional<Array>> observed_by_rank;
  std::optional<Array> observed_full;                 // where joined or summed before comparing
  std::vector<std::pair<std::string, bool>> matches;  // objective -> equals its truth
  // The truth under each objective that is defined, for the debate table: as truth_by_rank, or one
  // full tensor.
  std::vector<std::pair<std::string, std::vector<std::optional<Array>>>> truth_by_objective;
  double max_abs_error = 0;
  double max_rel_error = 0;
  double bound = 0;  // the bound at the worst element
  // The bound of each element, as truth_by_rank, or one full tensor. Absent where the part equals
  // the truth, has another shape or more than 2^20 elements.
  std::vector<std::optional<Array>> bounds;
  struct Place {
    int rank = 0;
    std::vector<std::int64_t> index;
  };
  std::optional<Place> first_difference;
  bool equal = true;
  std::vector<int>
      differing_ranks;  // whose gradient, or share of what is joined or summed, differs
};

struct CaseResult {
  Case which;
  Verdict verdict = Verdict::kMatch;
  std::optional<bool> as_expected;  // absent: skipped or disputed and not expected by the file
  bool broken = false;              // counts as broken, not as not_as_expected (exit code 3)
  std::string why;                  // why skipped, disputed or not as expected
  std::optional<RankError> error;
  std::vector<double> simulated_losses;
  std::vector<double> distributed_losses;
  std::vector<GradientComparison> gradients;
  std::vector<Finding> findings;
  std::vector<Warning> warnings;
  std::vector<std::string> composed;
  std::vector<std::string> output;  // by rank
  std::vector<std::string>
      notes;  // e.g. "the file's truth does not apply: the objective was overridden"
  std::vector<std::string> bound_notes;
  double elapsed_s = 0;
};

// Broken or not as expected: what turns a job red.
inline bool is_wrong(const CaseResult& r) { return r.broken || r.as_expected == false; }

// Whether it is a match that shows nothing, and no file says so; `findings` then has why.
inline bool is_vacuous(const CaseResult& r) {
  return r.verdict == Verdict::kMatch && !r.findings.empty() && r.which.expected.finding.empty();
}

struct InvalidFile {
  std::string file;
  SourcePosition position;
  std::string pointer;
  std::string message;
  std::string caret;
};

struct Summary {
  int cases = 0, as_expected = 0, not_as_expected = 0, broken = 0, skipped = 0, disputed = 0;
  double elapsed_s = 0;
};

// What a page shows at a glance: of an audit collectives by aspects, of saved gradients parameters
// by ranks.
struct Picture {
  enum class Tone { kNone, kRight, kWrong, kUnclear };
  struct Square {
    std::string word;  // short; may be empty
    Tone tone = Tone::kNone;
    std::string title;  // what it says when it is pointed at
  };
  struct Row {
    std::string label;
    std::vector<Square> squares;  // one a column
  };
  std::string title;
  std::vector<std::string> columns;
  std::vector<Row> rows;
  std::string legend;  // a sentence or two
};

struct Report {
  std::string command;
  std::string torch;          // version the ranks run; empty: none ran
  std::string unit = "case";  // what `cases` are to the reader: "parameter" in a comparison
  std::optional<Picture> picture = {};
  std::string printed =
      {};  // what the command printed, where that says more than the cases do; pages show it first
  std::vector<InvalidFile> invalid;
  std::vector<CaseResult> cases;
  Summary summary;
};

}  // namespace distgrad
