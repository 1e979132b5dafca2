// Explains what is wrong with a parameter's gradient.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dumps/parameter.h"
#include "dumps/rearranged.h"
#include "judge/factor_names.h"
#include "model/findings.h"

namespace distgrad::dumps {

enum class Explanation {
  kRight,
  kNoise,  // differs no more than rounding beside the model's largest gradient does; counts as
           // right
  kClose,  // differs by more than the tolerance and less than a short dtype's rounding
  kScaled,
  kSum,          // needs a sum, or a mean, over ranks
  kOtherSlice,   // each rank holds another's piece, or rows in another order
  kSummedParts,  // reduced over ranks that hold other parts of it
  kTransposed,
  kZero,
  kMissing,  // None, or absent, where the reference has a gradient
  kExtra,    // the reverse
  kNotFinite,
  kSomeRanks,       // right on some ranks, not on the others
  kUnsynchronised,  // right nowhere, and ranks that should hold copies differ
  kShape,
  kUncovered,  // no rank has a part of it
  kUnclear,    // it cannot be told what is right; nobody is blamed
  kUnexplained,
};

struct ExplanationRow {
  Explanation explanation;
  std::string_view name;     // in the JSON
  FindingName finding;       // none: right, or cannot be judged
  std::string_view meaning;  // what else was measured, or is possible; for the text
};
const ExplanationRow& row_of(Explanation);

struct WorstElement {
  std::vector<int> ranks;
  std::vector<std::int64_t> index;  // in the whole tensor
  double observed = 0, expected = 0;
};

struct ParameterResult {
  std::string name;
  int position = -1;  // in the model; -1: the files do not say
  Shape shape;
  Explanation explanation = Explanation::kRight;
  FindingName finding;   // none: right
  std::string headline;  // "needs a sum over tp (ranks 0, 1; ranks 2, 3)"
  std::string kind;  // what parameters with the same mistake share, if the headlines differ; else
                     // empty
  std::vector<int> ranks;        // the ones to blame, if not all
  std::optional<double> factor;  // observed / reference, or the sum's
  bool factor_known = false;
  bool factor_is_size = false;
  bool factor_is_loss_scale = false;
  std::string axis;  // of kSum
  DType dtype = DType::kFloat64;
  bool bitwise = false;
  double rtol = 0;  // the tolerance used
  double max_abs_error = 0;
  // Holds the 2-norm of the error over that of the reference, on the worst rank; may be infinite.
  double relative_error = 0;
  double largest_expected = 0, largest_observed = 0;
  std::optional<WorstElement> worst;  // absent: nothing differs, or nothing could be compared
  std::string arrangement;
  std::string grid;              // as Parameter has it
  std::set<std::string> orders;  // those of its axes in which it is right
  std::vector<std::pair<std::string, std::string>> placements;
  std::vector<std::string> notes;
  bool is_forgiven = false;  // kClose, in a dtype that cannot show more

  bool is_right() const {
    return explanation == Explanation::kRight || explanation == Explanation::kNoise;
  }
  // Returns true if it counts for the exit code.
  bool is_wrong() const { return !is_right() && !is_forgiven; }
};

// Returns true if the result's factor is this one, as far as its dtype can show. It must have one.
bool has_factor(const ParameterResult&, double factor);

struct ExplainContext {
  int world_size = 1;
  Tolerance tolerance;
  std::vector<NamedCount> counts;  // besides axes and ranks
  // Serves a second look, after all parameters had a first one (second_look.h).
  std::vector<double> shown = {};  // factors without a name by which others are wrong
  std::vector<ShownSum> sums = {};
  double common = 1;  // the factor of most gradients, divided out here
};

ParameterResult explain(const Parameter&, const ExplainContext&);

}  // namespace distgrad::dumps
