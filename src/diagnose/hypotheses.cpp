#include "diagnose/hypotheses.h"

#include <algorithm>
#include <cmath>

#include "gradients/closeness.h"

namespace distgrad {
namespace {

using enum CollectiveKind;

constexpr std::size_t kMostOfASort = kMostReplays / 2;

bool keeps_shape(const CollectiveCall& c) {
  return c.kind == kAllReduce || c.kind == kReduce || c.kind == kBroadcast || c.kind == kCopy;
}
bool is_sum(const CollectiveCall& c) { return c.op == ReduceOp::kSum; }
bool takes_op(const CollectiveCall& c) { return traits(c.kind).takes_op; }

bool has_a_peer(const CollectiveCall& call, const Program& program) {
  if (call.group.empty()) return program.world_size > 1;
  const Group* group = program.group_named(call.group);
  return !group || std::any_of(group->partition.begin(), group->partition.end(),
                               [](const auto& list) { return list.size() > 1; });
}

// Where a rank is alone in its group there is little to get wrong: a premul_sum's factor, a
// division by an operand that is 0, or the whole path.
bool shows_alone(std::string_view rule, const CollectiveCall& call) {
  return rule == "none" || rule == "out_over_x" || rule == "sum_out_over_x" ||
         (rule == "forgotten_op" && call.op == ReduceOp::kPremulSum);
}

struct Applicability {
  std::string_view rule;
  bool (*applies)(const CollectiveCall&);
};

// Where each rule differs from the adjoint (src/rules computes them). What is the adjoint itself
// there, such as same_op for a sum, explains nothing.
constexpr Applicability kApplicable[] = {
    // rule, calls
    {"identity", [](const CollectiveCall& c) { return keeps_shape(c) && c.kind != kCopy; }},
    {"same_op", [](const CollectiveCall& c) { return c.kind == kAllReduce && !is_sum(c); }},
    {"forgotten_op", [](const CollectiveCall& c) { return takes_op(c) && !is_sum(c); }},
    {"own_slice", [](const CollectiveCall& c) { return c.kind == kAllGather; }},
    {"sum_to_all",
     [](const CollectiveCall& c) {
       return keeps_shape(c) && !(c.kind == kAllReduce && is_sum(c));
     }},
    {"gather", [](const CollectiveCall& c) { return c.kind == kSlice; }},
    {"divided", [](const CollectiveCall& c) { return c.kind != kCopy && c.kind != kSlice; }},
    {"multiplied", [](const CollectiveCall& c) { return c.kind != kCopy && c.kind != kSlice; }},
    {"out_over_x",
     [](const CollectiveCall& c) { return c.kind == kAllReduce && c.op == ReduceOp::kProduct; }},
    {"sum_out_over_x",
     [](const CollectiveCall& c) { return c.kind == kAllReduce && c.op == ReduceOp::kProduct; }},
    {"own_full_to_ties",
     [](const CollectiveCall& c) {
       return c.kind == kAllReduce && (c.op == ReduceOp::kMin || c.op == ReduceOp::kMax);
     }},
    {"full_to_ties",
     [](const CollectiveCall& c) {
       return c.kind == kAllReduce && (c.op == ReduceOp::kMin || c.op == ReduceOp::kMax);
     }},
    {"leftovers", [](const CollectiveCall& c) { return c.kind == kBroadcast; }},
};

std::vector<const Step*> collectives_of(const Program& program) {
  std::vector<const Step*> steps;
  for (const Step& step : program.steps)
    if (step.collective()) steps.push_back(&step);
  return steps;
}

bool names_step(const Hypothesis& hypothesis, const RuleChoice& choice) {
  return std::any_of(hypothesis.begin(), hypothesis.end(), [&](const RuleChoice& c) {
    return c.step == choice.step && c.rule == choice.rule;
  });
}

bool is_part_of(const Hypothesis& part, const Hypothesis& whole) {
  return std::all_of(part.begin(), part.end(),
                     [&](const RuleChoice& c) { return names_step(whole, c); });
}

void add_joint(std::vector<Hypothesis>& all, Hypothesis hypothesis) {
  if (hypothesis.size() < 2 || all.size() >= kMostOfASort) return;
  for (const Hypothesis& known : all)
    if (known.size() == hypothesis.size() && is_part_of(known, hypothesis)) return;
  all.push_back(std::move(hypothesis));
}

// Empty where the library does not offer some collective, or raises.
Hypothesis library_hypothesis(const std::vector<const Step*>& steps, std::string_view library) {
  Hypothesis hypothesis;
  for (const Step* step : steps) {
    const auto rule = rule_of(library, step->collective()->kind, step->collective()->op);
    if (!rule || *rule == "raises") return {};
    if (*rule != "adjoint") hypothesis.push_back({step->name, std::string(*rule)});
  }
  return hypothesis;
}

bool is_rule_set(std::string_view subject) {
  const auto rows = subjects();
  return std::any_of(rows.begin(), rows.end(), [&](const SubjectRow& row) {
    return row.name == subject && row.how == "rules";
  });
}

// Elements that are missing count as the zeros that a simulation has in their place.
double observed_at(const std::optional<Array>& observed, std::size_t i) {
  return observed ? observed->values()[i] : 0;
}

double largest_of(const GradientByRank& gradients) {
  double largest = 0;
  for (const auto& g : gradients)
    if (g) largest = std::max(largest, largest_magnitude(g->values()));
  return largest;
}

double relative_bound(const Simulation& simulation, std::size_t input) {
  if (input >= simulation.bounds.size()) return 0;
  const double bound = largest_of(simulation.bounds[input].parts);
  const double truth = largest_of(simulation.gradients[0][input].parts);
  return truth > 0 ? std::min(bound / truth, 1.0 / 16) : 0;
}

enum class Nearness { kEqual, kNear, kFar };

// `slack` is relative to the input's largest predicted value.
Nearness nearness(const GradientByRank& predicted, const GradientByRank& observed, double slack) {
  const double bound = slack * largest_of(predicted);
  Nearness nearness = Nearness::kEqual;
  for (std::size_t r = 0; r < predicted.size(); ++r) {
    if (!predicted[r]) continue;
    if (observed[r] && observed[r]->shape() != predicted[r]->shape()) return Nearness::kFar;
    const auto values = predicted[r]->values();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double seen = observed_at(observed[r], i);
      if (within(seen, values[i], 0)) continue;
      if (!within(seen, values[i], bound)) return Nearness::kFar;
      nearness = Nearness::kNear;
    }
  }
  return nearness;
}

// How many times the expected error is let pass, and up to which relative error.
struct Look {
  double margin;
  double largest;
};
constexpr Look kFirstLook = {64, 0.25};    // the replay's own bounds decide
constexpr Look kLastLook = {1, 1.0 / 16};  // nothing sharper follows

Nearness nearness_to_observed(const Evidence& evidence,
                              const std::vector<GradientByRank>& predicted, const Look& look) {
  const Program& program = evidence.program();
  const double roundings = 4.0 + program.world_size + static_cast<double>(program.steps.size());
  Nearness all = Nearness::kEqual;
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    const GradientByRank& observed = evidence.comparison().gradients[i].observed_by_rank;
    if (predicted[i].size() != observed.size()) return Nearness::kFar;
    const double slack = look.margin * (relative_bound(evidence.simulation(), i) +
                                        roundings * unit_roundoff(program.dtype)) +
                         evidence.tolerance().rtol;
    const Nearness one = nearness(predicted[i], observed, std::min(slack, look.largest));
    if (one == Nearness::kFar) return one;
    if (one == Nearness::kNear) all = one;
  }
  return all;
}

std::vector<GradientByRank> parts_of(const std::vector<Gradient>& gradients) {
  std::vector<GradientByRank> parts;
  for (const Gradient& g : gradients) parts.push_back(g.parts);
  return parts;
}

Array zeros_like(const Array& array) {
  return Array(array.shape(), std::vector<double>(array.values().size(), 0.0));
}

}  // namespace

bool may_explain(const BackwardRuleRow& rule, const CollectiveCall& call, const Program& program) {
  if (rule.finding.empty()) return false;
  if (!shows_alone(rule.name, call) && !has_a_peer(call, program)) return false;
  for (const Applicability& row : kApplicable)
    if (row.rule == rule.name) return row.applies(call);
  return true;
}

std::vector<Hypothesis> single_hypotheses(const Program& program) {
  std::vector<Hypothesis> all;
  for (const BackwardRuleRow& rule : backward_rules())
    for (const Step* step : collectives_of(program))
      if (may_explain(rule, *step->collective(), program) && all.size() < kMostOfASort)
        all.push_back({{step->name, std::string(rule.name)}});
  return all;
}

std::vector<Hypothesis> joint_hypotheses(const Program& program, const std::string& subject) {
  const std::vector<const Step*> steps = collectives_of(program);
  std::vector<Hypothesis> all;
  if (is_rule_set(subject)) add_joint(all, library_hypothesis(steps, subject));
  for (const BackwardRuleRow& rule : backward_rules()) {
    Hypothesis everywhere;
    for (const Step* step : steps)
      if (may_explain(rule, *step->collective(), program))
        everywhere.push_back({step->name, std::string(rule.name)});
    add_joint(all, everywhere);
    for (const Step* like : steps) {
      Hypothesis alike;
      for (const Step* step : steps)
        if (step->collective()->kind == like->collective()->kind &&
            step->collective()->op == like->collective()->op &&
            may_explain(rule, *step->collective(), program))
          alike.push_back({step->name, std::string(rule.name)});
      add_joint(all, std::move(alike));
    }
  }
  for (const SubjectRow& row : subjects())
    if (row.how == "rules") add_joint(all, library_hypothesis(steps, row.name));
  return all;
}

Replayer::Replayer(const Evidence& evidence, const Replay& replay)
    : evidence_(evidence),
      replay_(replay),
      weights_(backward_weights(evidence.program(), evidence.which().objective,
                                evidence.divides_replicated())) {
  const std::vector<double> divisors = leftover_divisors(
      evidence.program(), evidence.which().objective, evidence.divides_replicated());
  for (std::size_t i = 0; i < divisors.size(); ++i)
    if (evidence.program().inputs[i].requires_grad) divisors_.push_back(divisors[i]);
}

std::optional<Simulation> Replayer::replayed(const Hypothesis& hypothesis, bool with_bounds) const {
  SimulateRequest request;
  request.program = evidence_.program();
  request.weights = {weights_};
  request.rules = hypothesis;
  request.leaves_by_rank = true;
  request.with_bounds = with_bounds;
  request.with_guards = false;
  Simulation simulation = replay_(request);
  if (simulation.invalid || simulation.gradients.empty()) return std::nullopt;
  return simulation;
}

// After sync and the leftover divisors.
std::vector<GradientByRank> Replayer::held(std::vector<GradientByRank> gradients) const {
  for (std::size_t i = 0; i < gradients.size(); ++i)
    gradients[i] =
        divided(synchronised(evidence_.program(), *evidence_.inputs()[i], std::move(gradients[i])),
                divisors_[i]);
  return gradients;
}

bool Replayer::reproduces(const Hypothesis& hypothesis) const {
  const auto quick = replayed(hypothesis, false);
  if (!quick || quick->gradients[0].size() != evidence_.inputs().size()) return false;
  const std::vector<GradientByRank> predicted = held(parts_of(quick->gradients[0]));
  const Nearness near = nearness_to_observed(evidence_, predicted, kFirstLook);
  if (near != Nearness::kNear) return near == Nearness::kEqual;
  if (evidence_.tolerance().kind == Tolerance::Kind::kEqual) return false;
  const auto bounded = replayed(hypothesis, true);
  return bounded && is_within(predicted, held(parts_of(bounded->bounds)));
}

bool Replayer::is_within(const std::vector<GradientByRank>& predicted,
                         const std::vector<GradientByRank>& bounds) const {
  const Tolerance& tolerance = evidence_.tolerance();
  const double roundoff = unit_roundoff(evidence_.program().dtype);
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    const GradientByRank& observed = evidence_.comparison().gradients[i].observed_by_rank;
    // The ranks' sync adds in the dtype, and the divisor rounds once more.
    const bool adds = !evidence_.inputs()[i]->sync.empty() || divisors_[i] != 1;
    const double own =
        adds ? evidence_.program().world_size * roundoff * largest_of(predicted[i]) : 0;
    for (std::size_t r = 0; r < predicted[i].size(); ++r) {
      if (!predicted[i][r]) continue;
      const bool has_bound = i < bounds.size() && r < bounds[i].size() && bounds[i][r];
      const auto allowed = [&](std::size_t e) {
        if (tolerance.kind == Tolerance::Kind::kExplicit)
          return tolerance.atol + tolerance.rtol * std::abs(predicted[i][r]->values()[e]);
        return (has_bound ? bounds[i][r]->values()[e] : 0) + own;
      };
      const Array seen = observed[r] ? *observed[r] : zeros_like(*predicted[i][r]);
      if (!difference(seen.values(), predicted[i][r]->values(), allowed).equal) return false;
    }
  }
  return true;
}

std::vector<std::vector<GradientByRank>> Replayer::shares() const {
  SimulateRequest request;
  request.program = evidence_.program();
  for (std::size_t r = 0; r < weights_.size(); ++r) {
    request.weights.emplace_back(weights_.size(), 0.0);
    request.weights.back()[r] = weights_[r];
  }
  request.leaves_by_rank = true;
  request.with_bounds = false;
  request.with_guards = false;
  const Simulation simulation = replay_(request);
  std::vector<std::vector<GradientByRank>> shares;
  if (simulation.invalid) return shares;
  for (const std::vector<Gradient>& row : simulation.gradients) {
    shares.emplace_back();
    for (const Gradient& g : row) shares.back().push_back(g.parts);
  }
  return shares;
}

bool Replayer::are_observed(const std::vector<GradientByRank>& gradients) const {
  return nearness_to_observed(evidence_, held(gradients), kLastLook) != Nearness::kFar;
}

namespace {

// Single ones that do, else the smallest joint ones.
std::vector<Hypothesis> reproducing(const Evidence& evidence, const Replayer& replayer) {
  std::vector<Hypothesis> found;
  for (Hypothesis& hypothesis : single_hypotheses(evidence.program()))
    if (replayer.reproduces(hypothesis)) found.push_back(std::move(hypothesis));
  if (!found.empty()) return found;
  std::vector<Hypothesis> joint = joint_hypotheses(evidence.program(), evidence.which().subject);
  std::stable_sort(joint.begin(), joint.end(),
                   [](const Hypothesis& a, const Hypothesis& b) { return a.size() < b.size(); });
  for (Hypothesis& hypothesis : joint) {
    const bool known = std::any_of(found.begin(), found.end(), [&](const Hypothesis& smaller) {
      return is_part_of(smaller, hypothesis);
    });
    if (!known && replayer.reproduces(hypothesis)) found.push_back(std::move(hypothesis));
  }
  return found;
}

}  // namespace

std::vector<Hypothesis> explanations(const Evidence& evidence, const Replayer& replayer) {
  std::vector<Hypothesis> found = reproducing(evidence, replayer);
  // What the subject is known to do is the likelier of explanations that look the same.
  if (is_rule_set(evidence.which().subject)) {
    const Hypothesis own = library_hypothesis(evidence.collectives(), evidence.which().subject);
    std::stable_partition(found.begin(), found.end(),
                          [&](const Hypothesis& h) { return is_part_of(h, own); });
  }
  return found;
}

}  // namespace distgrad
