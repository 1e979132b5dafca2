// Diagnosis by hypothesis: the simulation is run again with the backward of some collectives
// exchanged for a rule in use, and what the ranks would then hold is compared with what they do.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "diagnose/evidence.h"
#include "model/libraries.h"

namespace distgrad {

// Simulates; never throws for a rule that does not fit the program (Simulation::invalid).
using Replay = std::function<Simulation(const SimulateRequest&)>;

// A step's rule; the adjoint for steps not named.
using Hypothesis = std::vector<RuleChoice>;

// Whether the rule can be in question for the call: it takes such a call and is not its adjoint.
// A rule that is not known here is tried everywhere.
bool may_explain(const BackwardRuleRow&, const CollectiveCall&, const Program&);

// One collective under one rule or rewriting (diagnose/rewriting.h), for each that may be and that
// the loss depends on; rules of libraries first, as they are the likelier. At most kMostSingle.
std::vector<Hypothesis> single_hypotheses(const Program&);

// Several collectives at once, as a library has it: each rule on every collective it takes, and on
// those of one kind and op; and every library's own rules, the subject's before the others'. None
// names fewer than two steps; none occurs twice; at most kMostJoint.
std::vector<Hypothesis> joint_hypotheses(const Program&, const std::string& subject);

inline constexpr std::size_t kMostSingle = 160;
inline constexpr std::size_t kMostJoint = 96;
inline constexpr std::size_t kMostPairs = 64;
inline constexpr std::size_t kMostReplays = kMostSingle + kMostJoint + kMostPairs;

// Answers with a replay whether the observed gradients are those that the ranks would hold.
// A cheap replay without error bounds settles most cases; only where that is near, but not equal,
// is the replay repeated with bounds.
class Replayer {
 public:
  Replayer(const Evidence&, const Replay&);  // replays the adjoint, which all else is held against

  // What the ranks would hold of each input; nothing where the hypothesis does not fit the program.
  using Prediction = std::optional<std::vector<GradientByRank>>;
  Prediction predicted(const Hypothesis&) const;

  // Whether that is what they do hold, within the bounds, and not merely as near as the adjoint is.
  // Zeros everywhere are only taken for a path that is cut (`none`).
  bool explains(const Hypothesis&, const Prediction&) const;
  bool reproduces(const Hypothesis& h) const { return explains(h, predicted(h)); }

  const Prediction& adjoint() const { return adjoint_; }
  bool is_adjoint() const { return explains({}, adjoint_); }

  // The largest error of the observed values against these, beyond what rounding may do to the
  // truth, relative to the largest value of the input; the worst input counts. Infinite where
  // shapes differ.
  double relative_error(const std::vector<GradientByRank>&) const;

  // The inputs whose gradients are far from what the adjoint gives: no rounding explains them.
  std::vector<std::size_t> inputs_off() const;

  // Whether these, computed without a replay, are near enough for one.
  bool is_near(const std::vector<GradientByRank>&) const;

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
  // What the ranks hold after sync and the leftover divisors.
  std::vector<GradientByRank> held(std::vector<GradientByRank>) const;
  bool is_within(const std::vector<GradientByRank>& observed,
                 const std::vector<GradientByRank>& predicted,
                 const std::vector<GradientByRank>& bounds, DType) const;
  std::vector<GradientByRank> observed() const;
  bool is_much_nearer(const std::vector<GradientByRank>& predicted) const;

  const Evidence& evidence_;
  const Replay& replay_;
  std::vector<double> weights_;
  std::vector<double> divisors_;  // by input that requires grad
  Prediction adjoint_;
};

// What was found, and what was learnt on the way.
struct Explanations {
  std::vector<Hypothesis> found;
  // Steps without which (cut off) some gradient that differs would be another: where it may part.
  // By step, in program order, the inputs that it bears on, as indices of the gradients.
  std::vector<std::pair<const Step*, std::vector<std::size_t>>> bearing;
};

// The hypotheses that reproduce what was observed: single ones, or, where none does, joint ones of
// which no smaller part does, or else two collectives that go by two rules (which only data of some
// size can show). What the subject is known to do comes first.
Explanations explanations(const Evidence&, const Replayer&);

}  // namespace distgrad
