// Diagnosis by hypothesis: which backwards of which collectives may be what the ranks ran.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/libraries.h"
#include "model/run_result.h"

namespace distgrad {

// A step's rule, the adjoint for steps not named; or, for an input's name, what went wrong with its
// sync (diagnose/sync_mistakes.h).
using Hypothesis = std::vector<RuleChoice>;

// The choices on steps.
Hypothesis of_backward(const Hypothesis&);

// Whether the rule can be in question for the call: it takes such a call and is not its adjoint.
// A rule that is not known here is tried everywhere.
bool may_explain(const BackwardRuleRow&, const CollectiveCall&, const Program&);

// One collective under one rule or rewriting (diagnose/rewriting.h), for each that may be and that
// the loss depends on; rules of libraries first, as they are the likelier. At most kMostSingle.
std::vector<Hypothesis> single_hypotheses(const Program&);

// One input whose gradient was all-reduced wrongly after backward, for each way that makes sense;
// and several inputs in one such way: all that it makes sense for.
std::vector<Hypothesis> sync_hypotheses(const Program&);
std::vector<Hypothesis> joint_sync_hypotheses(const Program&);

// Several collectives at once, as a library has it: each rule on every collective it takes, and on
// those of one kind and op; and every library's own rules, the subject's before the others'. None
// names fewer than two steps; none occurs twice; at most kMostJoint.
std::vector<Hypothesis> joint_hypotheses(const Program&, const std::string& subject);

inline constexpr std::size_t kMostSingle = 160;
inline constexpr std::size_t kMostJoint = 96;
inline constexpr std::size_t kMostPairs = 64;
// Pairs get what the others leave of it, and kMostPairs at least.
inline constexpr std::size_t kMostReplays = kMostSingle + kMostJoint + kMostPairs;

// Some library has the rule, or it is what a plain collective does.
bool is_in_use(std::string_view rule);

// The number that the rule multiplies the call's adjoint by, whatever the cotangents; nothing for a
// rule that does more, or where groups of several sizes make it several numbers.
std::optional<double> scaling_factor(std::string_view rule, const CollectiveCall&, const Program&);

// Whether every choice of `part` is one of `whole`.
bool is_part_of(const Hypothesis& part, const Hypothesis& whole);

// Whether the subject is a table of rules, and the rules it has for these steps; empty where it
// does not offer some collective, or raises.
bool is_rule_set(std::string_view subject);
Hypothesis library_hypothesis(const std::vector<const Step*>& steps, std::string_view library);

}  // namespace distgrad
