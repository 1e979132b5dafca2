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

// One collective under one rule, for each that may be; at most kMostReplays / 2.
std::vector<Hypothesis> single_hypotheses(const Program&);

// Several collectives at once, as a library has it: each rule on every collective it takes, and on
// those of one kind and op; and every library's own rules, the subject's before the others'. None
// names fewer than two steps; none occurs twice; at most kMostReplays / 2.
std::vector<Hypothesis> joint_hypotheses(const Program&, const std::string& subject);

inline constexpr std::size_t kMostReplays = 192;

// Answers with a replay whether the observed gradients are those that the ranks would hold.
// A cheap replay without error bounds settles most cases; only where that is near, but not equal,
// is the replay repeated with bounds.
class Replayer {
 public:
  Replayer(const Evidence&, const Replay&);

  bool reproduces(const Hypothesis&) const;

  // By rank k (first index) what its loss alone contributes to what the ranks hold of each input;
  // empty where the simulation refuses.
  std::vector<std::vector<GradientByRank>> shares() const;

  // Whether the ranks hold these gradients (by input), given before sync and the leftover divisors.
  bool are_observed(const std::vector<GradientByRank>& gradients) const;

 private:
  std::optional<Simulation> replayed(const Hypothesis&, bool with_bounds) const;
  // What the ranks hold after sync and the leftover divisors.
  std::vector<GradientByRank> held(std::vector<GradientByRank>) const;
  bool is_within(const std::vector<GradientByRank>& predicted,
                 const std::vector<GradientByRank>& bounds) const;

  const Evidence& evidence_;
  const Replay& replay_;
  std::vector<double> weights_;
  std::vector<double> divisors_;  // by input that requires grad
};

// The hypotheses that reproduce what was observed: single ones, or, where none does, joint ones of
// which no smaller part does. What the subject is known to do comes first.
std::vector<Hypothesis> explanations(const Evidence&, const Replayer&);

}  // namespace distgrad
