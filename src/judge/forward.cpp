#include "judge/forward.h"

#include <algorithm>
#include <cmath>

#include "judge/closeness.h"
#include "judge/objective_truths.h"
#include "judge/tolerance.h"
#include "model/element_index.h"

namespace distgrad {
namespace {

// A closed form is evaluated in float64, with one to some tens of operators.
constexpr double kClosedFormRoundings = 32 * 0x1p-53;

// Notes a difference of one rank's value in `found`, which it makes if there is none yet.
void compare_value(const Tolerance& tolerance, const Array& simulated, const Array& distributed,
                   const Array* bound, int rank, std::optional<ForwardDifference>& found) {
  std::vector<std::int64_t> index;
  if (simulated.shape() == distributed.shape()) {
    if (is_same_memory(simulated.values(), distributed.values())) return;
    const ElementBound bound_at(tolerance, simulated, bound, false);
    const Difference d = difference(distributed.values(), simulated.values(), bound_at);
    if (d.equal) return;
    index = index_of(simulated.shape(), d.first);
  }
  if (!found) {
    found.emplace();
    found->rank = rank;
    found->index = std::move(index);
  }
  found->ranks.push_back(rank);
}

std::optional<ForwardDifference> step_difference(const Tolerance& tolerance,
                                                 const StepValue& simulated, std::size_t step,
                                                 const DistributedRun& run) {
  std::optional<ForwardDifference> found;
  for (std::size_t r = 0; r < run.ranks.size() && r < simulated.by_rank.size(); ++r) {
    if (step >= run.ranks[r].steps.size()) continue;
    const Array* bound = r < simulated.bound.size() ? &simulated.bound[r] : nullptr;
    compare_value(tolerance, simulated.by_rank[r], run.ranks[r].steps[step], bound,
                  static_cast<int>(r), found);
  }
  if (!found) return found;
  found->step = simulated.step;
  found->simulated = simulated.by_rank;
  for (const RankResult& rank : run.ranks) found->distributed.push_back(rank.steps[step]);
  return found;
}

std::optional<ForwardDifference> loss_difference(const Tolerance& tolerance,
                                                 const Simulation& simulation,
                                                 const DistributedRun& run) {
  std::optional<ForwardDifference> found;
  for (std::size_t r = 0; r < run.ranks.size() && r < simulation.losses.size(); ++r) {
    const Array bound =
        Array::scalar(r < simulation.loss_bounds.size() ? simulation.loss_bounds[r] : 0);
    compare_value(tolerance, Array::scalar(simulation.losses[r]), Array::scalar(run.ranks[r].loss),
                  &bound, static_cast<int>(r), found);
  }
  if (!found) return found;
  for (const double loss : simulation.losses) found->simulated.push_back(Array::scalar(loss));
  for (const RankResult& rank : run.ranks) found->distributed.push_back(Array::scalar(rank.loss));
  return found;
}

const Gradient* gradient_named(const std::vector<Gradient>& gradients, const std::string& input) {
  for (const Gradient& g : gradients)
    if (g.input == input) return &g;
  return nullptr;
}

const Array* part_of(const Gradient* gradient, std::size_t part) {
  if (!gradient || part >= gradient->parts.size() || !gradient->parts[part]) return nullptr;
  return &*gradient->parts[part];
}

bool is_local(const Program& program, const std::string& name) {
  return std::any_of(program.inputs.begin(), program.inputs.end(),
                     [&](const Input& i) { return i.name == name && i.is_local(); });
}

GuardDifference guard_difference(const Program& program, const std::string& input, std::size_t part,
                                 const Array& simulated, const Array& wanted,
                                 std::int64_t element) {
  GuardDifference d;
  d.input = input;
  d.rank = is_local(program, input) ? static_cast<int>(part) : -1;
  if (element >= 0) d.index = index_of(simulated.shape(), element);
  d.simulated = simulated;
  d.wanted = wanted;
  return d;
}

// Finds simulated/wanted, if it is one number for all pairs of elements to within rounding.
class RatioOfAll {
 public:
  void add(std::span<const double> simulated, std::span<const double> wanted) {
    for (std::size_t i = 0; i < wanted.size() && possible_; ++i) {
      if (simulated[i] == 0 && wanted[i] == 0) continue;
      const double ratio = simulated[i] / wanted[i];
      if (!std::isfinite(ratio) || ratio == 0) possible_ = false;
      if (ratio_ && std::abs(ratio - *ratio_) > 1e-9 * std::abs(*ratio_)) possible_ = false;
      if (!ratio_) ratio_ = ratio;
    }
  }
  std::optional<double> get() const { return possible_ ? ratio_ : std::nullopt; }

 private:
  bool possible_ = true;
  std::optional<double> ratio_;
};

bool applies(const Case& which, const Program::Truth& truth) {
  if (which.objective_overridden) return false;
  const bool is_figure = !std::holds_alternative<Expression>(truth.value);
  return !(is_figure && which.world_size_overridden);
}

// Returns the element of the first figure that differs from the simulation's, or -1.
std::int64_t first_wrong(const Program& program, const Program::Truth& truth,
                         const Array& simulated, const Array& wanted, const Array* bound) {
  const bool closed_form = std::holds_alternative<Expression>(truth.value);
  for (std::int64_t i = 0; i < simulated.size(); ++i) {
    double slack = bound ? (*bound)[i] : 0;
    if (closed_form) slack += kClosedFormRoundings * std::abs(simulated[i]);
    if (within(simulated[i], wanted[i], slack)) continue;
    if (within(simulated[i], rounded_to(program.dtype, wanted[i]), slack)) continue;
    return i;
  }
  return -1;
}

double objective_value(const std::vector<double>& weights, const std::vector<double>& losses) {
  double value = 0;
  for (std::size_t r = 0; r < losses.size(); ++r)
    if (weights[r] != 0) value += weights[r] * losses[r];
  return value;
}

std::optional<GuardDifference> loss_of_one_device(const Program& program,
                                                  const std::vector<double>& weights,
                                                  const Simulation& simulation) {
  if (!simulation.single_loss) return std::nullopt;
  const double value = objective_value(weights, simulation.losses);
  double bound = bound_in_float64(simulation.single_loss_bound, program.dtype);
  double magnitude = 0;
  for (std::size_t r = 0; r < simulation.losses.size(); ++r) {
    magnitude += std::abs(weights[r] * simulation.losses[r]);
    if (r < simulation.loss_bounds.size())
      bound += weights[r] * bound_in_float64(simulation.loss_bounds[r], program.dtype);
  }
  // The weighted sum is computed here, which adds roundings.
  if (std::isfinite(magnitude)) bound += static_cast<double>(weights.size()) * 0x1p-53 * magnitude;
  if (within(value, *simulation.single_loss, bound)) return std::nullopt;
  GuardDifference d;
  d.simulated = Array::scalar(value);
  d.wanted = Array::scalar(*simulation.single_loss);
  RatioOfAll ratio;
  ratio.add(d.simulated.values(), d.wanted.values());
  d.factor = ratio.get();
  return d;
}

}  // namespace

std::optional<ForwardDifference> forward_difference(const Tolerance& tolerance,
                                                    const Program& program,
                                                    const Simulation& simulation,
                                                    const DistributedRun& run) {
  std::size_t reported = 0;  // the ranks send the values of these steps only
  for (const Step& step : program.steps) {
    if (!step.is_reported()) continue;
    const auto simulated =
        std::find_if(simulation.steps.begin(), simulation.steps.end(),
                     [&](const StepValue& value) { return value.step == step.name; });
    if (simulated != simulation.steps.end())
      if (auto found = step_difference(tolerance, *simulated, reported, run)) return found;
    ++reported;
  }
  return loss_difference(tolerance, simulation, run);
}

std::optional<GuardDifference> truth_difference(const Case& which, const Program& program,
                                                const Simulation& simulation) {
  for (const Program::Truth& truth : program.truth) {
    if (!applies(which, truth)) continue;
    const Gradient* wanted = gradient_named(simulation.file_truth, truth.input);
    const Gradient* simulated = gradient_named(simulation.gradients[0], truth.input);
    const Gradient* bounds = gradient_named(simulation.bounds, truth.input);
    if (!wanted || !simulated) continue;
    for (std::size_t p = 0; p < simulated->parts.size(); ++p) {
      const Array *w = part_of(wanted, p), *s = part_of(simulated, p);
      if (!w || !s) continue;
      if (w->shape() != s->shape()) return guard_difference(program, truth.input, p, *s, *w, -1);
      const std::int64_t element = first_wrong(program, truth, *s, *w, part_of(bounds, p));
      if (element < 0) continue;
      GuardDifference d = guard_difference(program, truth.input, p, *s, *w, element);
      RatioOfAll ratio;
      ratio.add(s->values(), w->values());
      d.factor = ratio.get();
      return d;
    }
  }
  return std::nullopt;
}

std::optional<GuardDifference> program_difference(const Program& program,
                                                  const std::vector<double>& weights,
                                                  const Simulation& simulation) {
  std::optional<GuardDifference> found = loss_of_one_device(program, weights, simulation);
  RatioOfAll ratio;
  for (const Gradient& single : simulation.single_gradients) {
    const Gradient* truth = gradient_named(simulation.gradients[0], single.input);
    const Gradient* truth_bounds = gradient_named(simulation.bounds, single.input);
    const Gradient* single_bounds = gradient_named(simulation.single_bounds, single.input);
    for (std::size_t p = 0; p < single.parts.size(); ++p) {
      const Array *wanted = part_of(&single, p), *simulated = part_of(truth, p);
      if (!wanted || !simulated || wanted->shape() != simulated->shape()) continue;
      const Array *a = part_of(truth_bounds, p), *b = part_of(single_bounds, p);
      const auto bound = [&](std::size_t i) {
        const double both = (a ? a->values()[i] : 0) + (b ? b->values()[i] : 0);
        return bound_in_float64(both, program.dtype);
      };
      const Difference d = difference(simulated->values(), wanted->values(), bound);
      ratio.add(simulated->values(), wanted->values());
      if (!d.equal && !found)
        found = guard_difference(program, single.input, p, *simulated, *wanted, d.first);
    }
  }
  // One factor for every gradient says more than the factor of the loss.
  if (found && ratio.get() && *ratio.get() != 1) found->factor = ratio.get();
  return found;
}

}  // namespace distgrad
