// The simulation run again with the backward of some collectives exchanged, and what the ranks
// would then hold compared with what they do.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "diagnose/evidence.h"
#include "diagnose/hypotheses.h"

namespace distgrad {

// Simulates; never throws for a rule that does not fit the program (Simulation::invalid).
using Replay = std::function<Simulation(const SimulateRequest&)>;

// Answers with a replay whether the observed gradients are those that the ranks would hold.
// A cheap replay without error bounds settles most cases; only where that is near, but not equal,
// is the replay repeated with bounds.
class Replayer {
 public:
  Replayer(const Evidence&, const Replay&);  // replays the adjoint, which all else is held against

  // What the ranks would hold of each input; nothing where the hypothesis does not fit the program.
  using Prediction = std::optional<std::vector<GradientByRank>>;
  Prediction predicted(const Hypothesis&) const;

  // The same in two steps: what backward gives each rank, which is a replay, and what the ranks hold
  // after `sync` and the leftover divisors, which is arithmetic. Of the hypothesis the first looks
  // at the choices on collectives alone, the second at those on inputs (diagnose/sync_mistakes.h).
  Prediction after_backward(const Hypothesis&) const;
  Prediction after_sync(const std::vector<GradientByRank>&, const Hypothesis&) const;

  // Whether that is what they do hold, within the bounds, and not merely as near as the adjoint is.
  // Zeros everywhere are only taken for a path that is cut (`none`).
  bool explains(const Hypothesis&, const Prediction&) const;
  bool reproduces(const Hypothesis& h) const { return explains(h, predicted(h)); }

  const Prediction& adjoint() const { return adjoint_; }
  const Prediction& adjoint_after_backward() const { return adjoint_shares_; }
  bool is_adjoint() const { return explains({}, adjoint_); }

  // The largest error of the observed values against these, beyond what rounding may do to the
  // truth, relative to the largest value of the input; the worst input counts. Infinite where
  // shapes differ.
  double relative_error(const std::vector<GradientByRank>&) const;

  // The inputs whose gradients are far from what the adjoint gives: no rounding explains them.
  std::vector<std::size_t> inputs_off() const;

  // Whether these, computed without a replay, are near enough for one.
  bool is_near(const std::vector<GradientByRank>&) const;
  bool is_near(const std::vector<GradientByRank>&, std::size_t input) const;

  // Whether the observed gradients are the truth within the bounds of a narrower dtype.
  bool is_right_in(DType) const;

  // What ranks hold that report these gradients, and whether that is the truth: what the adjoint
  // gives, within its bounds.
  std::vector<GradientByRank> after_divisors(std::vector<GradientByRank>) const;
  bool is_truth(const std::vector<GradientByRank>& gradients) const;

  // By rank k (first index) what its loss alone contributes to what the ranks hold of each input;
  // empty where the simulation refuses.
  std::vector<std::vector<GradientByRank>> shares() const;

  // Whether the ranks hold these gradients (by input), given before sync and the leftover divisors.
  bool are_observed(const std::vector<GradientByRank>& gradients) const;

 private:
  std::optional<Simulation> replayed(const Hypothesis&, bool with_bounds,
                                     std::optional<DType> = {}) const;
  bool is_within(const std::vector<GradientByRank>& observed,
                 const std::vector<GradientByRank>& predicted, const Prediction& bounds,
                 DType, const Hypothesis& = {}) const;
  std::vector<GradientByRank> observed() const;
  bool is_much_nearer(const std::vector<GradientByRank>& predicted) const;

  const Evidence& evidence_;
  const Replay& replay_;
  std::vector<double> weights_;
  std::vector<double> divisors_;  // by input that requires grad
  Prediction adjoint_shares_, adjoint_;
};

}  // namespace distgrad
