// Turns a simulation into the record that a golden file keeps.
#pragma once

#include <string>
#include <vector>

#include "golden/golden_file.h"
#include "model/comparison.h"
#include "model/objective.h"
#include "model/run_result.h"

namespace distgrad::golden {

// Gradients with more elements than this, over all ranks, are summarised.
inline constexpr std::int64_t kSummarisedAbove = 1000;

// Records the truth: gradients[0] of a simulation with bounds. `guards` is what compare() returns
// without a run. The record has no gradients where the file's truth or the one-device program
// disagrees, where a branch is undecided, or where forward_only says why they cannot be judged.
CaseRecord record_of(const Program&, const Objective&, const Simulation&,
                     const CaseComparison& guards);

// Says which oracle disagrees; empty where none does.
std::string disagreement(const CaseComparison& guards);

// Summarises all parts as one tensor. `sha256` stays empty unless `largest_bound` is 0.
TensorSummary summary_of(const std::vector<Array>& parts, double largest_bound);

}  // namespace distgrad::golden
