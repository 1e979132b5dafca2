#include "diagnose/hypotheses.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "diagnose/reach.h"
#include "diagnose/rewriting.h"
#include "gradients/closeness.h"

namespace distgrad {
namespace {

using enum CollectiveKind;

// Of pairs that fit, so many are told.
constexpr std::size_t kMostPairsTold = 4;
// Numbers other than 0 that must be there before two rules at once are believed.
constexpr int kLeastForAPair = 4;
// A hypothesis that is not exact must leave at most so much of what the adjoint leaves unexplained.
constexpr double kMostUnexplained = 0.25;
// No rounding to a narrower dtype carries a gradient further.
constexpr double kLargestRounding = 1.0 / 16;

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

bool is_narrower(std::string_view rule, DType dtype) {
  for (const DType narrow : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
    if (rule.ends_with(traits(narrow).name))
      return traits(narrow).significand_bits < traits(dtype).significand_bits;
  return false;
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

bool communicates(const CollectiveCall& c) { return c.kind != kCopy && c.kind != kSlice; }
bool is_linear(const CollectiveCall& c) {
  return !takes_op(c) || is_sum(c) || c.op == ReduceOp::kAvg || c.op == ReduceOp::kPremulSum;
}
bool multiplies(const CollectiveCall& c) { return takes_op(c) && c.op == ReduceOp::kProduct; }
bool picks(const CollectiveCall& c) {
  return takes_op(c) && (c.op == ReduceOp::kMin || c.op == ReduceOp::kMax);
}
bool exchanges(const CollectiveCall& c) { return c.kind == kAllToAll || c.kind == kSendRecv; }

// Whether the ranks' operands have cotangents of their own, not one that all share.
bool has_rows(const CollectiveCall& c) {
  return c.kind == kAllGather || c.kind == kGather || exchanges(c) ||
         (takes_op(c) && !is_linear(c));
}
// Whether it matters which rank a cotangent comes from, beyond its being counted.
bool has_columns(const CollectiveCall& c) {
  return c.kind == kReduceScatter || c.kind == kScatter || exchanges(c);
}

// Where each rule differs from the adjoint (src/rules computes them). What is the adjoint itself
// there, such as same_op for a sum, or another rule of the table, explains nothing more.
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
    {"divided", communicates},
    {"multiplied", communicates},
    {"out_over_x", [](const CollectiveCall& c) { return c.kind == kAllReduce && multiplies(c); }},
    {"sum_out_over_x",
     [](const CollectiveCall& c) { return c.kind == kAllReduce && multiplies(c); }},
    {"own_full_to_ties", [](const CollectiveCall& c) { return c.kind == kAllReduce && picks(c); }},
    {"full_to_ties", [](const CollectiveCall& c) { return c.kind == kAllReduce && picks(c); }},
    {"leftovers", [](const CollectiveCall& c) { return c.kind == kBroadcast; }},
    {"own_part",
     [](const CollectiveCall& c) {
       return communicates(c) && c.kind != kAllGather && !(c.kind == kAllReduce && is_sum(c));
     }},
    {"others_part", communicates},
    {"reduced_twice",
     [](const CollectiveCall& c) {
       return c.kind == kAllGather || c.kind == kAllToAll || (takes_op(c) && !is_linear(c));
     }},
    {"next_slice", has_rows},
    {"previous_slice", has_rows},
    {"mirrored_slice", has_rows},
    {"first_slice",
     [](const CollectiveCall& c) { return c.kind == kAllGather || c.kind == kGather; }},
    {"own_slices_summed", [](const CollectiveCall& c) { return c.kind == kAllGather; }},
    {"next_cotangent", has_columns},
    {"previous_cotangent", has_columns},
    {"mirrored_cotangent", has_columns},
    {"first_place", [](const CollectiveCall& c) { return c.kind == kSlice; }},
    {"not_exchanged", exchanges},
    {"sent_forward", [](const CollectiveCall& c) { return c.kind == kSendRecv; }},
    {"all_to_each_tie", [](const CollectiveCall& c) { return c.kind != kAllReduce && picks(c); }},
    {"all_to_first_tie", picks},
    {"total_out_over_x",
     [](const CollectiveCall& c) { return c.kind != kAllReduce && multiplies(c); }},
    {"total_out_over_x_or_0", multiplies},
    {"operand_as_stored", [](const CollectiveCall& c) { return takes_op(c) && !is_linear(c); }},
};

std::vector<const Step*> collectives_of(const Program& program) {
  std::vector<const Step*> steps;
  for (const Step& step : program.steps)
    if (step.collective()) steps.push_back(&step);
  return steps;
}

// Some library has it, or it is what a plain collective does.
bool is_in_use(std::string_view rule) {
  const auto rows = library_rows();
  return rule == "sum_to_all" || rule == "none" ||
         std::any_of(rows.begin(), rows.end(), [&](const LibraryRow& r) { return r.rule == rule; });
}

bool is_order(std::string_view rule) {
  const auto rewriting = rewriting_named(rule);
  return rewriting && rewriting->kind == Rewriting::Kind::kOrder;
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
  if (hypothesis.size() < 2 || all.size() >= kMostJoint) return;
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

// `slack` is relative to the input's largest predicted value, `rounding` absolute.
Nearness nearness(const GradientByRank& predicted, const GradientByRank& observed, double slack,
                  double rounding) {
  const double bound = std::max(slack * largest_of(predicted), rounding);
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

Nearness nearness_of_input(const Evidence& evidence, const std::vector<GradientByRank>& predicted,
                           std::size_t input, const Look& look) {
  const Program& program = evidence.program();
  const double roundings = 4.0 + program.world_size + static_cast<double>(program.steps.size());
  const GradientByRank& observed = evidence.comparison().gradients[input].observed_by_rank;
  if (predicted[input].size() != observed.size()) return Nearness::kFar;
  const double slack = look.margin * (relative_bound(evidence.simulation(), input) +
                                      roundings * unit_roundoff(program.dtype)) +
                       evidence.tolerance().rtol;
  // What cancels is nothing but rounding, of which no relative error says anything.
  const double rounding = look.margin * evidence.largest_bound(input);
  return nearness(predicted[input], observed, std::min(slack, look.largest), rounding);
}

Nearness nearness_to_observed(const Evidence& evidence,
                              const std::vector<GradientByRank>& predicted, const Look& look) {
  Nearness all = Nearness::kEqual;
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    const Nearness one = nearness_of_input(evidence, predicted, i, look);
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

bool is_zero(const std::vector<GradientByRank>& gradients) {
  return std::all_of(gradients.begin(), gradients.end(),
                     [](const GradientByRank& g) { return largest_of(g) == 0; });
}

// The adjoint of a loss that leads nowhere is zero as well.
bool is_cut(const Hypothesis& hypothesis) {
  return std::all_of(hypothesis.begin(), hypothesis.end(),
                     [](const RuleChoice& c) { return c.rule == "none"; });
}

}  // namespace

bool may_explain(const BackwardRuleRow& rule, const CollectiveCall& call, const Program& program) {
  if (rule.finding.empty()) return false;
  if (rule.finding == "precision" && !is_narrower(rule.name, program.dtype)) return false;
  if (!shows_alone(rule.name, call) && !has_a_peer(call, program)) return false;
  for (const Applicability& row : kApplicable)
    if (row.rule == rule.name) return row.applies(call);
  return true;
}

std::vector<Hypothesis> single_hypotheses(const Program& program) {
  const Reach reach(program);
  std::vector<const Step*> steps;
  for (const Step* step : collectives_of(program))
    if (!reach.inputs_behind(step->name).empty()) steps.push_back(step);
  std::vector<Hypothesis> all;
  const auto propose = [&](const Step& step, std::string rule) {
    if (all.size() < kMostSingle) all.push_back({{step.name, std::move(rule)}});
  };
  const auto propose_rules = [&](bool in_use) {
    for (const BackwardRuleRow& rule : backward_rules())
      for (const Step* step : steps)
        if (is_in_use(rule.name) == in_use && may_explain(rule, *step->collective(), program))
          propose(*step, std::string(rule.name));
  };
  const auto propose_rewritings = [&](bool of_order) {
    for (const Step* step : steps)
      for (std::string& rewriting : rewritings_of(program, *step))
        if (is_order(rewriting) == of_order) propose(*step, std::move(rewriting));
  };
  propose_rules(true);
  propose_rewritings(true);  // says why the slice or the root is another
  propose_rules(false);
  propose_rewritings(false);
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
  adjoint_ = predicted({});
}

std::optional<Simulation> Replayer::replayed(const Hypothesis& hypothesis, bool with_bounds,
                                             std::optional<DType> dtype) const {
  SimulateRequest request;
  request.program = evidence_.program();
  request.rules = rewrite(request.program, hypothesis);
  if (dtype) request.program.dtype = *dtype;
  request.weights = {weights_};
  request.leaves_by_rank = true;
  request.with_bounds = with_bounds;
  request.with_guards = false;
  Simulation simulation = replay_(request);
  if (simulation.invalid || simulation.gradients.empty() ||
      simulation.gradients[0].size() != evidence_.inputs().size())
    return std::nullopt;
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

Replayer::Prediction Replayer::predicted(const Hypothesis& hypothesis) const {
  const auto quick = replayed(hypothesis, false);
  return quick ? Prediction(held(parts_of(quick->gradients[0]))) : std::nullopt;
}

bool Replayer::explains(const Hypothesis& hypothesis, const Prediction& predicted) const {
  if (!predicted) return false;
  if (is_zero(*predicted) && !is_cut(hypothesis)) return false;
  const Nearness near = nearness_to_observed(evidence_, *predicted, kFirstLook);
  if (near != Nearness::kNear) return near == Nearness::kEqual;
  if (evidence_.tolerance().kind == Tolerance::Kind::kEqual) return false;
  if (!hypothesis.empty() && !is_much_nearer(*predicted)) return false;
  const auto bounded = replayed(hypothesis, true);
  return bounded && is_within(observed(), *predicted, held(parts_of(bounded->bounds)),
                              evidence_.program().dtype);
}

double Replayer::relative_error(const std::vector<GradientByRank>& predicted) const {
  double worst = 0;
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    const GradientByRank& observed = evidence_.comparison().gradients[i].observed_by_rank;
    const double largest = std::max(largest_of(predicted[i]), largest_of(observed));
    if (largest == 0) continue;
    for (std::size_t r = 0; r < predicted[i].size(); ++r) {
      if (!predicted[i][r]) continue;
      const Array seen = observed[r] ? *observed[r] : zeros_like(*predicted[i][r]);
      if (seen.shape() != predicted[i][r]->shape()) return std::numeric_limits<double>::infinity();
      const Difference d = difference(seen.values(), predicted[i][r]->values(), no_slack);
      worst = std::max(worst, (d.max_abs_error - 2 * evidence_.largest_bound(i)) / largest);
    }
  }
  return worst;
}

bool Replayer::is_much_nearer(const std::vector<GradientByRank>& predicted) const {
  return !adjoint_ || relative_error(predicted) <= kMostUnexplained * relative_error(*adjoint_);
}

std::vector<std::size_t> Replayer::inputs_off() const {
  std::vector<std::size_t> inputs;
  if (!adjoint_) return inputs;
  for (std::size_t i = 0; i < adjoint_->size(); ++i)
    if (nearness_of_input(evidence_, *adjoint_, i, kFirstLook) == Nearness::kFar)
      inputs.push_back(i);
  return inputs;
}

bool Replayer::is_near(const std::vector<GradientByRank>& predicted) const {
  return nearness_to_observed(evidence_, predicted, kFirstLook) != Nearness::kFar;
}

std::vector<GradientByRank> Replayer::observed() const {
  std::vector<GradientByRank> all;
  for (const GradientComparison& g : evidence_.comparison().gradients)
    all.push_back(g.observed_by_rank);
  return all;
}

std::vector<GradientByRank> Replayer::after_divisors(std::vector<GradientByRank> gradients) const {
  for (std::size_t i = 0; i < gradients.size(); ++i)
    gradients[i] = divided(gradients[i], divisors_[i]);
  return gradients;
}

bool Replayer::is_truth(const std::vector<GradientByRank>& gradients) const {
  if (!adjoint_) return false;
  const auto bounded = replayed({}, true);
  return bounded && is_within(gradients, *adjoint_, held(parts_of(bounded->bounds)),
                              evidence_.program().dtype);
}

bool Replayer::is_right_in(DType dtype) const {
  if (!adjoint_) return false;
  const auto bounded = replayed({}, true, dtype);
  return bounded && is_within(observed(), *adjoint_, held(parts_of(bounded->bounds)), dtype);
}

bool Replayer::is_within(const std::vector<GradientByRank>& observed,
                         const std::vector<GradientByRank>& predicted,
                         const std::vector<GradientByRank>& bounds, DType dtype) const {
  const Tolerance& tolerance = evidence_.tolerance();
  const double roundoff = unit_roundoff(dtype);
  for (std::size_t i = 0; i < predicted.size(); ++i) {
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
      const Array seen = observed[i][r] ? *observed[i][r] : zeros_like(*predicted[i][r]);
      if (seen.shape() != predicted[i][r]->shape()) return false;
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

struct Trial {
  Hypothesis hypothesis;
  std::vector<GradientByRank> predicted;
};

std::string_view finding_of(const RuleChoice& choice) {
  for (const BackwardRuleRow& row : backward_rules())
    if (row.name == choice.rule) return row.finding;
  return "";
}

// The inputs of which a rank's gradient would be another with the step cut off.
std::vector<std::size_t> borne_on(const std::vector<GradientByRank>& cut,
                                  const std::vector<GradientByRank>& adjoint) {
  std::vector<std::size_t> inputs;
  for (std::size_t i = 0; i < cut.size(); ++i)
    for (std::size_t r = 0; r < cut[i].size(); ++r) {
      if (!cut[i][r] || !adjoint[i][r]) continue;
      if (difference(cut[i][r]->values(), adjoint[i][r]->values(), no_slack).equal) continue;
      inputs.push_back(i);
      break;
    }
  return inputs;
}

// The search, from the likely to the far-fetched.
class Search {
 public:
  Search(const Evidence& evidence, const Replayer& replayer)
      : evidence_(evidence),
        replayer_(replayer),
        reach_(evidence.program()),
        off_(replayer.inputs_off()),
        singles_(single_hypotheses(evidence.program())) {}

  Explanations run() {
    try_singles();
    if (out_.found.empty()) try_joint();
    if (out_.found.empty()) predict_the_rest();
    if (out_.found.empty() && shows_pairs()) try_sums_of_two();
    if (out_.found.empty() && shows_pairs()) try_pairs_in_use();
    std::sort(out_.bearing.begin(), out_.bearing.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });  // of one vector
    return std::move(out_);
  }

 private:
  // Whether all that is off can come from these steps. What is written over may be anybody's.
  bool bears_on_all(const Hypothesis& hypothesis) const {
    return std::all_of(off_.begin(), off_.end(), [&](std::size_t input) {
      return std::any_of(hypothesis.begin(), hypothesis.end(), [&](const RuleChoice& c) {
        return c.rule == "overwritten" || reach_.inputs_behind(c.step).contains(input);
      });
    });
  }

  void try_singles() {
    const bool near =
        replayer_.adjoint() && replayer_.relative_error(*replayer_.adjoint()) <= kLargestRounding;
    if (!near)
      std::erase_if(singles_, [](const Hypothesis& h) { return finding_of(h[0]) == "precision"; });
    for (const Hypothesis& hypothesis : singles_)
      if (bears_on_all(hypothesis) && predict(hypothesis) &&
          replayer_.explains(hypothesis, trials_.back().predicted))
        out_.found.push_back(hypothesis);
  }

  // What cannot explain all alone may explain some of it.
  void predict_the_rest() {
    for (const Hypothesis& hypothesis : singles_)
      if (!bears_on_all(hypothesis)) predict(hypothesis);
  }

  bool predict(const Hypothesis& hypothesis) {
    auto predicted = replayer_.predicted(hypothesis);
    if (!predicted) return false;
    if (hypothesis[0].rule == "none") note_bearing(hypothesis[0].step, *predicted);
    trials_.push_back({hypothesis, std::move(*predicted)});
    return true;
  }

  void note_bearing(const std::string& name, const std::vector<GradientByRank>& cut) {
    if (!replayer_.adjoint()) return;
    for (const Step* step : evidence_.collectives())
      if (step->name == name) out_.bearing.emplace_back(step, borne_on(cut, *replayer_.adjoint()));
  }

  void try_joint() {
    std::vector<Hypothesis> joint =
        joint_hypotheses(evidence_.program(), evidence_.which().subject);
    std::stable_sort(joint.begin(), joint.end(),
                     [](const Hypothesis& a, const Hypothesis& b) { return a.size() < b.size(); });
    for (Hypothesis& hypothesis : joint) {
      const bool known =
          std::any_of(out_.found.begin(), out_.found.end(),
                      [&](const Hypothesis& smaller) { return is_part_of(smaller, hypothesis); });
      if (!known && bears_on_all(hypothesis) && replayer_.reproduces(hypothesis))
        out_.found.push_back(std::move(hypothesis));
    }
  }

  // With enough rules and few numbers some pair always fits.
  bool shows_pairs() const {
    int numbers = 0;
    for (const ComparedPart& part : evidence_.parts())
      if (part.observed)
        for (const double v : part.observed->values()) numbers += v != 0 && std::isfinite(v);
    return numbers >= kLeastForAPair;
  }

  // Where neither collective lies behind the other, what two mistakes change adds up: no replay is
  // needed to see which two may be meant.
  void try_sums_of_two() {
    if (!replayer_.adjoint()) return;
    for (std::size_t a = 0; a < trials_.size(); ++a)
      for (std::size_t b = a + 1; b < trials_.size(); ++b) {
        if (trials_[a].hypothesis[0].step == trials_[b].hypothesis[0].step) continue;
        const auto both = sum_of_changes(trials_[a].predicted, trials_[b].predicted);
        if (replayer_.is_near(both)) try_pair(trials_[a].hypothesis[0], trials_[b].hypothesis[0]);
        if (is_enough()) return;
      }
  }

  // Where one lies behind the other only a replay tells; so only rules that are known to be in use.
  void try_pairs_in_use() {
    std::vector<RuleChoice> choices;
    for (const Trial& trial : trials_)
      if (is_in_use(trial.hypothesis[0].rule) && trial.hypothesis[0].rule != "none")
        choices.push_back(trial.hypothesis[0]);
    for (std::size_t a = 0; a < choices.size(); ++a)
      for (std::size_t b = a + 1; b < choices.size() && !is_enough(); ++b)
        if (choices[a].step != choices[b].step) try_pair(choices[a], choices[b]);
  }

  void try_pair(const RuleChoice& a, const RuleChoice& b) {
    Hypothesis hypothesis = {a, b};
    if (!bears_on_all(hypothesis)) return;
    ++pairs_;
    if (replayer_.reproduces(hypothesis)) out_.found.push_back(std::move(hypothesis));
  }

  bool is_enough() const { return pairs_ >= kMostPairs || out_.found.size() >= kMostPairsTold; }

  std::vector<GradientByRank> sum_of_changes(const std::vector<GradientByRank>& a,
                                             const std::vector<GradientByRank>& b) const {
    std::vector<GradientByRank> sum = a;
    for (std::size_t i = 0; i < sum.size(); ++i)
      for (std::size_t r = 0; r < sum[i].size(); ++r) {
        if (!sum[i][r]) continue;
        const auto first = a[i][r]->values(), second = b[i][r]->values();
        const auto plain = (*replayer_.adjoint())[i][r]->values();
        std::vector<double> values(first.size());
        for (std::size_t e = 0; e < values.size(); ++e) values[e] = first[e] + second[e] - plain[e];
        sum[i][r] = Array(sum[i][r]->shape(), std::move(values));
      }
    return sum;
  }

  const Evidence& evidence_;
  const Replayer& replayer_;
  const Reach reach_;
  const std::vector<std::size_t> off_;  // inputs that no rounding explains
  std::vector<Hypothesis> singles_;
  std::vector<Trial> trials_;
  std::size_t pairs_ = 0;
  Explanations out_;
};

}  // namespace

Explanations explanations(const Evidence& evidence, const Replayer& replayer) {
  Explanations all = Search(evidence, replayer).run();
  // What the subject is known to do is the likelier of explanations that look the same.
  if (is_rule_set(evidence.which().subject)) {
    const Hypothesis own = library_hypothesis(evidence.collectives(), evidence.which().subject);
    std::stable_partition(all.found.begin(), all.found.end(),
                          [&](const Hypothesis& h) { return is_part_of(h, own); });
  }
  return all;
}

}  // namespace distgrad
