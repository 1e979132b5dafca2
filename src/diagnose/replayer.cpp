#include "diagnose/replayer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "diagnose/rewriting.h"
#include "diagnose/sync_mistakes.h"
#include "gradients/closeness.h"
#include "gradients/rounding_room.h"

namespace distgrad {
namespace {

// A hypothesis that is not exact must leave at most so much of what the adjoint leaves unexplained.
constexpr double kMostUnexplained = 0.25;

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

std::vector<SyncMistake> mistakes_of(const Hypothesis& hypothesis, const std::string& input) {
  std::vector<SyncMistake> mistakes;
  for (const RuleChoice& choice : hypothesis)
    if (const auto mistake = sync_mistake_named(choice.rule); mistake && choice.step == input)
      mistakes.push_back(*mistake);
  return mistakes;
}

// Zeros beside NaN, as of a product's output divided by a zero operand, are no cut.
bool is_zero(const std::vector<GradientByRank>& gradients) {
  const auto has_only_zeros = [](const std::optional<Array>& g) {
    return !g || std::all_of(g->values().begin(), g->values().end(), [](double v) { return v == 0; });
  };
  return std::all_of(gradients.begin(), gradients.end(), [&](const GradientByRank& g) {
    return std::all_of(g.begin(), g.end(), has_only_zeros);
  });
}

// The adjoint of a loss that leads nowhere is zero as well.
bool is_cut(const Hypothesis& hypothesis) {
  return std::all_of(hypothesis.begin(), hypothesis.end(),
                     [](const RuleChoice& c) { return c.rule == "none"; });
}

}  // namespace

Replayer::Replayer(const Evidence& evidence, const Replay& replay)
    : evidence_(evidence),
      replay_(replay),
      weights_(backward_weights(evidence.program(), evidence.which().objective,
                                evidence.divides_replicated())) {
  const std::vector<double> divisors = leftover_divisors(
      evidence.program(), evidence.which().objective, evidence.divides_replicated());
  for (std::size_t i = 0; i < divisors.size(); ++i)
    if (evidence.program().inputs[i].requires_grad) divisors_.push_back(divisors[i]);
  adjoint_shares_ = after_backward({});
  if (adjoint_shares_) adjoint_ = after_sync(*adjoint_shares_, {});
}

std::optional<Simulation> Replayer::replayed(const Hypothesis& hypothesis, bool with_bounds,
                                             std::optional<DType> dtype) const {
  SimulateRequest request;
  request.program = evidence_.program();
  request.rules = rewrite(request.program, of_backward(hypothesis));
  if (dtype) request.program.dtype = *dtype;
  request.weights = {weights_};
  request.leaves_by_rank = true;
  request.with_bounds = with_bounds;
  request.with_guards = false;
  Simulation simulation = with_rounding_room(replay_(request), evidence_.which().subject, request.program.dtype);
  if (simulation.invalid || simulation.gradients.empty() ||
      simulation.gradients[0].size() != evidence_.inputs().size())
    return std::nullopt;
  return simulation;
}

Replayer::Prediction Replayer::after_backward(const Hypothesis& hypothesis) const {
  const auto quick = replayed(hypothesis, false);
  return quick ? Prediction(parts_of(quick->gradients[0])) : std::nullopt;
}

Replayer::Prediction Replayer::after_sync(const std::vector<GradientByRank>& shares,
                                          const Hypothesis& hypothesis) const {
  std::vector<GradientByRank> held;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const Input& input = *evidence_.inputs()[i];
    const auto mistakes = mistakes_of(hypothesis, input.name);
    const auto gradients = synchronised(evidence_.program(), input, mistakes, shares[i]);
    if (!gradients) return std::nullopt;
    held.push_back(divided(*gradients, divisors_[i]));
  }
  return held;
}

Replayer::Prediction Replayer::predicted(const Hypothesis& hypothesis) const {
  // Of one on inputs alone backward is the adjoint's.
  const auto shares =
      of_backward(hypothesis).empty() ? adjoint_shares_ : after_backward(hypothesis);
  return shares ? after_sync(*shares, hypothesis) : std::nullopt;
}

bool Replayer::explains(const Hypothesis& hypothesis, const Prediction& predicted) const {
  if (!predicted) return false;
  if (is_zero(*predicted) && !is_cut(hypothesis)) return false;
  const Nearness near = nearness_to_observed(evidence_, *predicted, kFirstLook);
  if (near != Nearness::kNear) return near == Nearness::kEqual;
  if (evidence_.tolerance().kind == Tolerance::Kind::kEqual) return false;
  if (!hypothesis.empty() && !is_much_nearer(*predicted)) return false;
  const auto bounded = replayed(hypothesis, true);
  return bounded &&
         is_within(observed(), *predicted, after_sync(parts_of(bounded->bounds), hypothesis),
                   evidence_.program().dtype, hypothesis);
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

bool Replayer::is_near(const std::vector<GradientByRank>& predicted, std::size_t input) const {
  return nearness_of_input(evidence_, predicted, input, kFirstLook) != Nearness::kFar;
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
  return bounded && is_within(gradients, *adjoint_, after_sync(parts_of(bounded->bounds), {}),
                              evidence_.program().dtype);
}

bool Replayer::is_right_in(DType dtype) const {
  if (!adjoint_) return false;
  const auto bounded = replayed({}, true, dtype);
  return bounded &&
         is_within(observed(), *adjoint_, after_sync(parts_of(bounded->bounds), {}), dtype);
}

bool Replayer::is_within(const std::vector<GradientByRank>& observed,
                         const std::vector<GradientByRank>& predicted, const Prediction& bounds,
                         DType dtype, const Hypothesis& hypothesis) const {
  if (!bounds) return false;
  const Tolerance& tolerance = evidence_.tolerance();
  const double roundoff = unit_roundoff(dtype);
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    // The ranks' sync adds in the dtype, and the divisor rounds once more.
    const Input& input = *evidence_.inputs()[i];
    const bool adds =
        !input.sync.empty() || divisors_[i] != 1 || !mistakes_of(hypothesis, input.name).empty();
    const double own =
        adds ? evidence_.program().world_size * roundoff * largest_of(predicted[i]) : 0;
    for (std::size_t r = 0; r < predicted[i].size(); ++r) {
      if (!predicted[i][r]) continue;
      const bool has_bound = i < bounds->size() && r < (*bounds)[i].size() && (*bounds)[i][r];
      const auto allowed = [&](std::size_t e) {
        if (tolerance.kind == Tolerance::Kind::kExplicit)
          return tolerance.atol + tolerance.rtol * std::abs(predicted[i][r]->values()[e]);
        return (has_bound ? (*bounds)[i][r]->values()[e] : 0) + own;
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
  const Prediction held = after_sync(gradients, {});
  return held && nearness_to_observed(evidence_, *held, kLastLook) != Nearness::kFar;
}

}  // namespace distgrad
