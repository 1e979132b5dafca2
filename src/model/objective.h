// Says what "the gradient" is meant to be, as weights on the ranks' losses. Source: semantics,
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

// Spells an objective as case names do: sum, mean, replicated, rank:1, dp=mean+tp=replicated.
std::string spelled(const Objective&);

// Returns the weights w, by rank, that define the truth: J = Σ_r w_r l_r.
std::vector<double> truth_weights(const Program&, const Objective&);

// Returns the cotangent that each rank's backward starts with. `divides_replicated` is true for the
// subject `reference` alone, which divides by the size under `replicated`, too. Along an axis (or
// the world) where some input has sync "mean", that sync does the division instead.
std::vector<double> backward_weights(const Program&, const Objective&, bool divides_replicated);

// Returns, by input, the number to divide its gradients by after backward. It is not 1 where
// backward_weights left the division to another input's sync.
std::vector<double> post_sync_divisors(const Program&, const Objective&, bool divides_replicated);

// Returns every objective that is defined for the program: sum, mean, replicated if the losses
// agree, and rank:k for each k. With a mesh it adds the combinations by axis whose replicated axes
// have losses that agree, except those that equal a plain objective. With more than three axes it
// adds only those in which one axis differs from all others, so a declared objective by axis may be
// missing.
// `losses` are by rank and compared with ==; the caller equalises those that agree within a
// tolerance.
std::vector<Objective> defined_objectives(const Program&, const std::vector<double>& losses);

// Returns lists of ranks that must agree on the loss under `objective`; empty if none must.
std::vector<std::vector<int>> ranks_that_agree(const Program&, const Objective&);

}  // namespace distgrad
