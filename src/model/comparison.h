// Holds what a comparison of one case's distributed run with its simulation found. Diagnosis starts
// from it.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "model/report.h"

namespace distgrad {

// Names the first step whose forward value differs from the simulation's. An empty `step` is the
// loss.
struct ForwardDifference {
  std::string step;
  int rank = 0;
  std::vector<std::int64_t> index;
  std::vector<int> ranks;          // all ranks where the value differs
  std::vector<Array> simulated;    // by rank
  std::vector<Array> distributed;  // by rank
};

// Describes a value that should equal the simulated truth and does not: the file's own `truth`, or
// the result of `single_device`.
struct GuardDifference {
  std::string input;  // empty: the loss, against the objective J
  int rank = -1;      // -1: the full tensor, or the loss
  std::vector<std::int64_t> index;
  Array simulated;  // of the distributed program: the truth, or J
  Array wanted;     // what the file or the one-device program says
  // Holds simulated over wanted, if one number fits every element that differs.
  std::optional<double> factor;
};

struct CaseComparison {
  std::vector<GradientComparison> gradients;  // in the order of the inputs that require grad
  std::optional<ForwardDifference> forward;
  std::optional<GuardDifference> truth;
  std::optional<GuardDifference> program;
  std::vector<double> simulated_losses;    // by rank
  std::vector<double> distributed_losses;  // by rank; empty without a run

  bool gradients_equal() const {
    return std::all_of(gradients.begin(), gradients.end(),
                       [](const GradientComparison& g) { return g.equal; });
  }
  bool equal() const { return gradients_equal() && !forward && !truth && !program; }
};

}  // namespace distgrad
