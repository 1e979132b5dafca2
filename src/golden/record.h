// From a simulation to what a golden file keeps of it.
#pragma once

#include <string>
#include <vector>

#include "golden/golden_file.h"
#include "model/comparison.h"
#include "model/objective.h"
#include "model/run_result.h"

namespace distgrad::golden {

// Gradients with more elements than these, all ranks together, are summarised.
inline constexpr std::int64_t kSummarisedAbove = 1000;

// Of the truth: gradients[0] of a simulation with bounds. `guards` is what compare() says of it
// without a run: where the file's truth or the one-device program disagrees there are no gradients
// to hold anybody to, nor where a branch is undecided.
CaseRecord record_of(const Program&, const Objective&, const Simulation&,
                     const CaseComparison& guards);

// Which oracle disagrees, in words; empty where none does.
std::string disagreement(const CaseComparison& guards);

// Absent parts and bounds (no gradient, exact) are zeros.
TensorSummary summary_of(const std::vector<Array>& parts, double largest_bound);

}  // namespace distgrad::golden
