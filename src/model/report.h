// Holds the finished records that reporters print. Source: command-line contract, "JSON report".
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/findings.h"
#include "model/run_result.h"
#include "model/scenario.h"
#include "model/verdict.h"

namespace distgrad {

// Describes the measured backward of one collective call as the linear map x̄ = M ȳ, beside the
// right map M*. If several groups of ranks do the same, it describes one group, else the world.
struct Measured {
  std::string formula;  // "x̄_r = 4 ȳ_r"; if the map is not linear, says what was seen instead
  std::string right;    // "x̄_r = Σ_k ȳ_k"
  bool linear = true;
  std::string shown_by;    // says what the formula rests on: "a basis of 12 cotangents and 4 random
                           // ones"
  std::vector<int> ranks;  // of the world, in the order of the rows and columns below
  // Has the factor [to][from] relative to M*; empty if one number a pair of ranks does not suffice.
  std::vector<std::vector<double>> coefficients;
  // Has M and M* by element, row-major; absent if they were not measured whole. A row is an element
  // of x̄ (all of the first rank's in row-major order, then the second's ...), a column one of ȳ.
  struct Matrices {
    std::vector<int> rows, columns;  // how many elements each of `ranks` has
    std::vector<double> measured, right;
  };
  std::optional<Matrices> matrices;
};

struct Finding {
  FindingName rule;             // "identity-backward"
  std::string collective = {};  // "all_reduce"; empty if none is blamed
  std::string step = {};
  std::vector<int> ranks = {};
  std::optional<double> factor = {};  // observed/truth, if that is one number
  std::string text = {};  // what it means and what to change, for a reader of nothing else of ours
  std::optional<Measured> measured = {};  // set for a collective call that could be run again
};

struct GradientComparison {
  std::string input;
  std::string layout;  // as in the scenario format: "local", "replicate", {"shard": 0} spelled
                       // "shard:0", by axis "dp=replicate,tp=shard:0"
  std::vector<std::optional<Array>> truth_by_rank;  // local inputs
  std::optional<Array> truth_full;                  // the others
  std::vector<std::optional<Array>> observed_by_rank;
  std::optional<Array> observed_full;  // set if the ranks' parts were joined or summed before
                                       // comparing
  std::vector<std::pair<std::string, bool>> matches;  // objective -> equals its truth
  // Has the truth under each objective that is defined, for the debate table, either as
  // truth_by_rank or as one full tensor.
  std::vector<std::pair<std::string, std::vector<std::optional<Array>>>> truth_by_objective;
  double max_abs_error = 0;
  double max_rel_error = 0;
  double bound = 0;  // the bound at the worst element
  // Has the bound of each element, as truth_by_rank or one full tensor. A part is absent if it
  // equals the truth, has another shape, or has more than 2^20 elements.
  std::vector<std::optional<Array>> bounds;
  struct Place {
    int rank = 0;
    std::vector<std::int64_t> index;
  };
  std::optional<Place> first_difference;
  bool equal = true;
  // Lists the ranks whose gradient, or whose share of a joined or summed one, differs.
  std::vector<int> differing_ranks;
};

struct CaseResult {
  Case which;
  Verdict verdict = Verdict::kMatch;
  std::optional<bool> as_expected;  // absent if skipped, or disputed, and the file does not expect
                                    // that
  bool broken = false;              // counts as broken, not as not_as_expected (exit code 3)
  std::string why;                  // says why the case is skipped, disputed or not as expected
  std::optional<RankError> error;
  std::vector<double> simulated_losses;
  std::vector<double> distributed_losses;
  std::vector<GradientComparison> gradients;
  std::vector<Finding> findings;
  std::vector<Warning> warnings;
  std::vector<std::string> composed;
  std::vector<std::string> output;  // by rank
  // E.g. "the file's truth does not apply: the objective was overridden".
  std::vector<std::string> notes;
  std::vector<std::string> bound_notes;
  double elapsed_s = 0;
};

// Returns true for a case that turns a CI job red: it is broken or not as expected.
inline bool is_wrong(const CaseResult& r) { return r.broken || r.as_expected == false; }

// Returns true for a match that shows nothing, unless the file expects that; `findings` then says
// why.
inline bool is_vacuous(const CaseResult& r) {
  return r.verdict == Verdict::kMatch && r.which.expected.finding.empty() &&
         std::ranges::any_of(r.findings, [](const Finding& f) { return f.rule == "vacuous"; });
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

// Holds what a page shows at a glance: collectives by aspects for an audit, parameters by ranks for
// saved gradients.
struct Picture {
  enum class Tone { kNone, kRight, kWrong, kUnclear };
  struct Square {
    std::string word;  // short; may be empty
    Tone tone = Tone::kNone;
    std::string title;  // the tooltip
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
  std::string unit = "case";  // what readers call one of `cases`: "parameter" in a comparison
  std::optional<Picture> picture = {};
  // Has what the command printed, if that says more than the cases do. Pages show it first.
  std::string printed = {};
  // Says where a training step goes wrong; formats that show a case alone add it there.
  std::vector<std::string> where = {};
  std::vector<InvalidFile> invalid;
  std::vector<CaseResult> cases;
  Summary summary;
};

}  // namespace distgrad
