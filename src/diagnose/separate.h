// Whether a program tells hypotheses apart: what its ranks would hold under each of them.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "diagnose/replayer.h"
#include "model/objective.h"

namespace distgrad {

// By input that requires grad, by rank; after sync and the leftover divisors.
using Gradients = std::vector<GradientByRank>;

// One number that is not the same under all hypotheses.
struct TellingElement {
  std::size_t input = 0;  // index of the gradient
  std::size_t rank = 0;
  std::int64_t element = 0;  // row-major
};

struct Separation {
  Gradients truth;              // under the adjoint
  std::vector<Gradients> held;  // by hypothesis
  std::vector<std::size_t> of;  // by hypothesis: the first that gives the same gradients
  std::size_t kinds = 0;        // different ones among them
  // Which together tell apart what is, the first most by itself; a few at most.
  std::vector<TellingElement> telling;
};

// Nothing where the program means nothing, is not decided, or some hypothesis does not fit it.
// Gradients count as different from a relative difference of kTellingDifference on, which no
// rounding in float64 comes near.
inline constexpr double kTellingDifference = 1e-4;
std::optional<Separation> separation(const Program&, const Objective&, bool divides_replicated,
                                     const std::vector<Hypothesis>&, const Replay&);

}  // namespace distgrad
