#include "judge/evidence.h"

#include <algorithm>
#include <set>

#include "judge/closeness.h"
#include "judge/user_code_slack.h"

namespace distgrad {
namespace {

std::optional<Array> part_of(const std::vector<Gradient>& gradients, std::size_t i,
                             std::size_t part) {
  if (i >= gradients.size() || part >= gradients[i].parts.size()) return std::nullopt;
  return gradients[i].parts[part];
}

}  // namespace

Evidence::Evidence(const Case& which, const SimulateRequest& asked, const Simulation& simulation,
                   const CaseComparison& comparison)
    : which_(which),
      asked_(asked),
      simulation_(with_user_code_slack(simulation, which.subject, asked.program.dtype)),
      comparison_(comparison) {
  for (const Input& input : asked.program.inputs)
    if (input.requires_grad) inputs_.push_back(&input);
  std::set<int> missing;
  for (std::size_t i = 0; i < inputs_.size() && i < comparison.gradients.size(); ++i) {
    const GradientComparison& g = comparison.gradients[i];
    if (g.observed_by_rank.empty()) continue;  // no run
    const Shape full = g.truth_full ? g.truth_full->shape() : Shape{};
    std::vector<Part> parts = assemble(asked.program, *inputs_[i], full, g.observed_by_rank);
    for (std::size_t p = 0; p < parts.size(); ++p) {
      missing.insert(parts[p].missing.begin(), parts[p].missing.end());
      const std::size_t t = inputs_[i]->is_local() ? p : 0;
      const std::optional<Array> truth = part_of(simulation_.gradients[0], i, t);
      if (!truth) continue;
      parts_.push_back({i, std::move(parts[p].ranks), std::move(parts[p].value), *truth,
                        part_of(simulation_.bounds, i, t)});
    }
  }
  missing_.assign(missing.begin(), missing.end());
}

const Tolerance& Evidence::tolerance() const {
  static const Tolerance kDerived;
  return which_.scenario ? which_.scenario->tolerance : kDerived;
}

std::vector<int> Evidence::differing_ranks() const {
  std::set<int> ranks;
  for (const GradientComparison& g : comparison_.gradients)
    ranks.insert(g.differing_ranks.begin(), g.differing_ranks.end());
  return {ranks.begin(), ranks.end()};
}

std::vector<std::size_t> Evidence::differing_inputs() const {
  std::vector<std::size_t> inputs;
  for (std::size_t i = 0; i < comparison_.gradients.size(); ++i)
    if (!comparison_.gradients[i].equal) inputs.push_back(i);
  return inputs;
}

double Evidence::largest_bound(std::size_t input) const {
  double largest = 0;
  if (input < simulation_.bounds.size())
    for (const std::optional<Array>& part : simulation_.bounds[input].parts)
      if (part) largest = std::max(largest, largest_magnitude(part->values()));
  return largest;
}

double Evidence::bound_between_runs(std::size_t input) const {
  return largest_bound(input) -
         user_code_slack(simulation_, input, which_.subject, asked_.program.dtype);
}

std::vector<int> Evidence::ranks_without_gradient() const { return missing_; }

std::vector<const Step*> Evidence::collectives() const {
  std::vector<const Step*> steps;
  for (const Step& step : asked_.program.steps)
    if (step.collective()) steps.push_back(&step);
  return steps;
}

}  // namespace distgrad
