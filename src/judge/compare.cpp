#include "judge/compare.h"

#include <set>

#include "judge/assemble.h"
#include "judge/closeness.h"
#include "judge/forward.h"
#include "judge/objective_truths.h"
#include "judge/tolerance.h"
#include "judge/user_code_slack.h"
#include "model/element_index.h"

namespace distgrad {
namespace {

constexpr std::int64_t kMostBoundsKept = std::int64_t{1} << 20;  // elements of a tensor

// Holds what every input of the case is compared with.
struct ComparisonContext {
  const Program& program;
  const Objective& declared;
  const Tolerance& tolerance;
  const Simulation& simulation;
  std::vector<ObjectiveTruth> objectives;
};

const Array* array_at(const std::vector<std::optional<Array>>& parts, std::size_t part) {
  return part < parts.size() && parts[part] ? &*parts[part] : nullptr;
}

// Compares one input's parts with the truth, and with the truth of every other objective.
class InputComparison {
 public:
  InputComparison(const ComparisonContext& ground, const Input& input, std::size_t gradient)
      : ground_(ground),
        input_(input),
        truth_(ground.simulation.gradients[0][gradient]),
        gradient_(gradient) {
    result_.input = input.name;
    result_.layout = layout_text(input);
    if (input.is_local()) {
      result_.truth_by_rank = truth_.parts;
    } else {
      result_.truth_full = truth_.parts.at(0);
    }
    if (gradient < ground.simulation.bounds.size()) bounds_ = &ground.simulation.bounds[gradient];
    for (const ObjectiveTruth& objective : ground.objectives)
      result_.truth_by_objective.push_back({objective.name, objective.gradients[gradient].parts});
  }

  GradientComparison without_run() { return std::move(result_); }

  GradientComparison with(const GradientByRank& held, double divisor) {
    result_.observed_by_rank = divided(held, divisor);
    divided_ = divisor != 1;
    const Shape full = result_.truth_full ? result_.truth_full->shape() : Shape{};
    parts_ = assemble(ground_.program, input_, full, result_.observed_by_rank);
    for (std::size_t p = 0; p < parts_.size(); ++p) add_part(p);
    keep_observed_full();
    result_.equal = total_.equal;
    result_.max_abs_error = total_.max_abs_error;
    result_.max_rel_error = total_.max_rel_error;
    result_.bound = total_.bound;
    result_.differing_ranks.assign(differing_.begin(), differing_.end());
    if (ground_.simulation.forward_only.empty()) {
      for (const ObjectiveTruth& objective : ground_.objectives)
        result_.matches.push_back({objective.name, matches(objective)});
    } else {
      result_.equal = true;  // not judged
      result_.first_difference.reset();
      result_.differing_ranks.clear();
    }
    return std::move(result_);
  }

 private:
  // Local inputs have a truth for each part, which is a rank; the others have one for all parts.
  std::size_t truth_index(std::size_t part) const { return input_.is_local() ? part : 0; }

  bool has_wrong_shape(const Part& part, const Array& wanted) const {
    return !part.misshapen.empty() || (part.value && part.value->shape() != wanted.shape());
  }

  void add_part(std::size_t p) {
    const Array* wanted = array_at(truth_.parts, truth_index(p));
    if (!wanted) return;
    const Part& part = parts_[p];
    if (has_wrong_shape(part, *wanted)) {
      add_wrong_shape(part);
      return;
    }
    const Array* derived = bounds_ ? array_at(bounds_->parts, truth_index(p)) : nullptr;
    // A missing gradient stands for zeros only where the truth is 0, which no tolerance stretches.
    const Tolerance tolerance = part.lacks_a_piece ? Tolerance{} : ground_.tolerance;
    const ElementBound bound(tolerance, *wanted, derived, part.is_sum || divided_);
    // The rank's gradient is the truth's own memory, so it need not be read.
    if (part.value && bound.is_zero() && is_same_memory(part.value->values(), wanted->values()))
      return;
    const Array observed = part.value ? *part.value : zeros_like(*wanted);
    const Difference d = difference(observed.values(), wanted->values(), bound);
    if (!d.equal) add_difference(p, *wanted, observed, bound, d);
    total_.add(d);
    if (!d.equal && !first_differing_) first_differing_ = p;
  }

  static Array zeros_like(const Array& array) {
    return Array(array.shape(), std::vector<double>(array.values().size(), 0.0));
  }

  void add_wrong_shape(const Part& part) {
    const std::vector<int>& ranks = part.misshapen.empty() ? part.ranks : part.misshapen;
    if (!result_.first_difference) result_.first_difference = {ranks.front(), {}};
    differing_.insert(ranks.begin(), ranks.end());
    Difference d;
    d.equal = false;
    d.max_abs_error = d.max_rel_error = std::numeric_limits<double>::infinity();
    total_.add(d);
  }

  void add_difference(std::size_t p, const Array& wanted, const Array& observed,
                      const ElementBound& bound, const Difference& d) {
    const Part& part = parts_[p];
    std::vector<double> bounds(wanted.values().size());
    for (std::size_t i = 0; i < bounds.size(); ++i) bounds[i] = bound(i);
    const Array all_bounds(wanted.shape(), std::move(bounds));
    if (all_bounds.size() <= kMostBoundsKept) {
      result_.bounds.resize(truth_.parts.size());
      result_.bounds[truth_index(p)] = all_bounds;
    }
    const auto index = index_of(wanted.shape(), d.first);
    if (!result_.first_difference) result_.first_difference = {part.holder_of(index), index};
    if (part.pieces.size() <= 1) {
      differing_.insert(part.ranks.begin(), part.ranks.end());
      return;
    }
    for (const Piece& piece : part.pieces) {
      const Array o = box_of(observed, piece.start, piece.extent);
      const Array w = box_of(wanted, piece.start, piece.extent);
      const Array b = box_of(all_bounds, piece.start, piece.extent);
      const auto bound_at = [&](std::size_t i) { return b.values()[i]; };
      if (!difference(o.values(), w.values(), bound_at).equal)
        differing_.insert(piece.ranks.begin(), piece.ranks.end());
    }
  }

  // Keeps the ranks' joined or summed tensor. Of several, the first that differs.
  void keep_observed_full() {
    if (input_.is_local() || parts_.empty()) return;
    const Part& shown = parts_[first_differing_.value_or(0)];
    if (shown.ranks.size() > 1) result_.observed_full = shown.value;
  }

  bool matches(const ObjectiveTruth& objective) const {
    if (objective.objective == ground_.declared || objective.bounds[gradient_].empty())
      return result_.equal;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const std::size_t t = truth_index(p);
      const Array* wanted = array_at(objective.gradients[gradient_].parts, t);
      if (!wanted) continue;
      const Part& part = parts_[p];
      if (has_wrong_shape(part, *wanted)) return false;
      const Tolerance tolerance = part.lacks_a_piece ? Tolerance{} : ground_.tolerance;
      const ElementBound bound(tolerance, *wanted, &objective.bounds[gradient_][t],
                               part.is_sum || divided_);
      const Array observed = part.value ? *part.value : zeros_like(*wanted);
      if (!difference(observed.values(), wanted->values(), bound).equal) return false;
    }
    return true;
  }

  const ComparisonContext& ground_;
  const Input& input_;
  const Gradient& truth_;
  const Gradient* bounds_ = nullptr;
  std::size_t gradient_;
  bool divided_ = false;
  GradientComparison result_;
  std::vector<Part> parts_;
  Difference total_;
  std::optional<std::size_t> first_differing_;
  std::set<int> differing_;
};

GradientByRank held_by_ranks(const DistributedRun& run, std::size_t gradient) {
  GradientByRank held;
  for (const RankResult& rank : run.ranks)
    held.push_back(gradient < rank.gradients.size() ? rank.gradients[gradient] : std::nullopt);
  return held;
}

void compare_gradients(const Case& which, const ComparisonContext& ground,
                       const DistributedRun* run, CaseComparison& comparison) {
  const Program& program = ground.program;
  const std::vector<double> divisors =
      post_sync_divisors(program, which.objective, divides_replicated(which, program));
  std::size_t gradient = 0;
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    if (!program.inputs[i].requires_grad) continue;
    InputComparison input(ground, program.inputs[i], gradient);
    comparison.gradients.push_back(run ? input.with(held_by_ranks(*run, gradient), divisors[i])
                                       : input.without_run());
    ++gradient;
  }
}

}  // namespace

CaseComparison compare(const Case& which, const SimulateRequest& asked, const Simulation& simulated,
                       const DistributedRun* run, OtherObjectives objectives) {
  static const Tolerance kDerived;
  std::optional<Simulation> roomy;
  if (run && is_code_of_users(which.subject))
    roomy = with_user_code_slack(simulated, which.subject, asked.program.dtype);
  const Simulation& simulation = roomy ? *roomy : simulated;
  const Tolerance& tolerance = which.scenario ? which.scenario->tolerance : kDerived;
  ComparisonContext ground{asked.program, which.objective, tolerance, simulation, {}};
  if (objectives == OtherObjectives::kCompared)
    ground.objectives = objective_truths(asked, simulation);
  CaseComparison comparison;
  comparison.simulated_losses = simulation.losses;
  compare_gradients(which, ground, run, comparison);
  if (run) {
    for (const RankResult& rank : run->ranks) comparison.distributed_losses.push_back(rank.loss);
    comparison.forward = forward_difference(tolerance, asked.program, simulation, *run);
  }
  comparison.truth = truth_difference(which, asked.program, simulated);
  comparison.program = program_difference(asked.program, asked.weights.at(0), simulated);
  return comparison;
}

}  // namespace distgrad
