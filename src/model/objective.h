// What "the gradient" is meant to be, as weights on the ranks' losses. Source: semantics,
// "Objective".
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/program.h"

namespace distgrad {

struct Objective {
  enum class Kind { kSum, kMean, kReplicated, kRank, kByAxis };
  enum class Axis { kSum, kMean, kReplicated };
  Kind kind = Kind::kSum;
  int rank = 0;                                    // kRank
  std::vector<std::pair<std::string, Axis>> axes;  // kByAxis, in mesh order

  bool operator==(const Objective&) const = default;
};

// As spelt in case names: sum, mean, replicated, rank:1, dp=mean+tp=replicated.
std::string spelled(const Objective&);

// J = Σ_r w_r l_r: the weights w that define the truth, by rank.
std::vector<double> truth_weights(const Program&, const Objective&);

// The cotangent each rank's backward starts with. `divides_replicated` is true for the subject
// `reference` alone (under `replicated` it divides by the size too). A mean over an axis (or the
// world) along which some input has sync "mean" is left to that sync.
std::vector<double> backward_weights(const Program&, const Objective&, bool divides_replicated);

// By input: what the gradients of that input are divided by after backward, because the weight left
// the division to another input's sync (1 for most).
std::vector<double> post_sync_divisors(const Program&, const Objective&, bool divides_replicated);

// Every objective that is defined for the program: sum, mean, replicated where the losses agree,
// rank:k for each k, and with a mesh every combination by axis for which the losses agree along its
// replicated axes and that is not one of the plain ones under another name (with more than three
// axes only those in which one axis differs from all others). So a declared objective by axis need
// not be among them.
// `losses` by rank, compared with == (the caller decides about tolerance by passing equalised
// values).
std::vector<Objective> defined_objectives(const Program&, const std::vector<double>& losses);

// The ranks must agree on the loss within each list of this partition under `objective`; empty
// where none must.
std::vector<std::vector<int>> ranks_that_agree(const Program&, const Objective&);

}  // namespace distgrad
