#include "judge/vacuous.h"

#include <algorithm>
#include <cmath>

namespace distgrad {
namespace {

bool is_zero(const std::optional<Array>& part) {
  return !part ||
         std::all_of(part->values().begin(), part->values().end(), [](double x) { return x == 0; });
}

bool is_zero(const GradientComparison& g) {
  return is_zero(g.truth_full) && std::all_of(g.truth_by_rank.begin(), g.truth_by_rank.end(),
                                              [](const auto& part) { return is_zero(part); });
}

// Returns whether all elements are NaN, and there are some.
bool are_nan(const std::vector<GradientComparison>& gradients) {
  bool any = false, all = true;
  const auto look = [&](const std::optional<Array>& part) {
    if (!part) return;
    for (const double x : part->values()) {
      any = true;
      all = all && std::isnan(x);
    }
  };
  for (const GradientComparison& g : gradients) {
    look(g.truth_full);
    for (const auto& part : g.truth_by_rank) look(part);
  }
  return any && all;
}

bool has_collectives(const Program& program) {
  return std::any_of(program.steps.begin(), program.steps.end(),
                     [](const Step& step) { return step.collective() != nullptr; });
}

}  // namespace

std::optional<Finding> vacuous_match(const Program& program, const Simulation& simulation,
                                     const CaseComparison& comparison) {
  const auto& gradients = comparison.gradients;
  Finding finding{.rule = "vacuous"};
  // If cotangents do arrive, a gradient of 0 is one that a wrong backward may miss.
  const bool is_reached = has_collectives(program) && !simulation.reaches_no_collective;
  if (!is_reached && !gradients.empty() &&
      std::all_of(gradients.begin(), gradients.end(), [](const auto& g) { return is_zero(g); })) {
    finding.text =
        "Every gradient is 0 or None. Look at the loss: values taken out of the graph (detach, "
        "item), a factor of 0, an input that it does not use.";
    return finding;
  }
  if (are_nan(gradients)) {
    finding.text = "Every gradient is NaN. A wrong backward may give the same.";
    return finding;
  }
  const bool syncs = std::any_of(program.inputs.begin(), program.inputs.end(),
                                 [](const Input& input) { return !input.sync.empty(); });
  if (!simulation.reaches_no_collective || syncs) return std::nullopt;
  finding.text =
      "No gradient goes through the backward of a collective: the loss does not use what they "
      "give, takes it out of the graph (detach, item) or multiplies it by 0.";
  return finding;
}

}  // namespace distgrad
