// Runs `distgrad compare` on two dumps, from files read to results.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dumps/explain.h"

namespace distgrad::dumps {

struct ComparisonOptions {
  Tolerance tolerance = {};
  std::vector<NamedCount> counts = {};        // --count: sizes that may explain a factor
  std::vector<std::string> partly_held = {};  // patterns of parameters that some ranks lack
  // Pairs a pattern with a reduction_named: plain tensors to be reduced over the ranks first.
  std::vector<std::pair<std::string, std::string>> reductions = {};
};

struct DumpComparison {
  std::string reference, observed;          // as typed
  int world_size = 1;                       // the observed dump's; 0: it is one whole file
  std::vector<DumpAxis> mesh;               // of the observed dump's world; empty: unknown
  std::vector<int> absent_ranks;            // of the observed dump
  std::vector<ParameterResult> parameters;  // in the model's order if that is known, else by name,
                                            // with numbers in names as numbers
  std::string vacuous;  // why a match shows nothing; empty if it shows something
  std::vector<std::string> notes;

  bool all_right() const;  // forgiven parameters included
};

// Throws UserError if the two have no parameter in common, or a pattern fits none.
DumpComparison compare_dumps(const Dump& reference, const Dump& observed, const ComparisonOptions&);

}  // namespace distgrad::dumps
