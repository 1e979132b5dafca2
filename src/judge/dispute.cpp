#include "judge/dispute.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "judge/closeness.h"
#include "judge/compare.h"
#include "judge/phrases.h"
#include "judge/user_code_slack.h"
#include "model/element_index.h"

namespace distgrad {
namespace {

// An estimated bound may be exceeded by chance, but not by so many times.
constexpr double kMostOfBound = 64;
// A bound above this part of the largest gradient may hide a mistake.
constexpr double kHides = 1.0 / 64;

// Returns true if what is computed is rounded to a narrower dtype than float64.
bool rounds(const Case& which, const Simulation& simulation) {
  return which.dtype != DType::kFloat64 || !simulation.casts.empty();
}

// Gives elements whose truth is unknown an infinite bound.
void open_bounds(const std::vector<UndecidedElement>& elements, std::vector<Gradient>& bounds) {
  for (const UndecidedElement& e : elements)
    for (Gradient& bound : bounds) {
      const auto part = static_cast<std::size_t>(e.part);
      if (bound.input != e.input || part >= bound.parts.size() || !bound.parts[part]) continue;
      std::vector<double> values(bound.parts[part]->values().begin(),
                                 bound.parts[part]->values().end());
      if (static_cast<std::size_t>(e.element) >= values.size()) continue;
      values[static_cast<std::size_t>(e.element)] = std::numeric_limits<double>::infinity();
      bound.parts[part] = Array(bound.parts[part]->shape(), std::move(values));
    }
}

std::string place_text(const GradientComparison& g) {
  const GradientComparison::Place& place = *g.first_difference;
  std::string text = g.input;
  if (!place.index.empty()) text += fmt::format("[{}]", fmt::join(place.index, ", "));
  return text + fmt::format(" on rank {}", place.rank);
}

const GradientComparison* first_differing(const CaseComparison& comparison) {
  for (const GradientComparison& g : comparison.gradients)
    if (!g.equal && g.first_difference) return &g;
  return nullptr;
}

// Returns "x[2] on rank 1: the gradient is 0, the slope of the objective 2".
std::string difference_text(const GradientComparison& g) {
  const auto [observed, truth] = at_first_difference(g);
  return fmt::format("{}: the gradient is {}, the slope of the objective {}", place_text(g),
                     observed.value_or("missing"), truth);
}

// Says why the truth of the first element that differs is unknown.
std::string why_undecided(const GradientComparison& g, const Simulation& simulation) {
  const GradientComparison::Place& place = *g.first_difference;
  const bool local = !g.truth_by_rank.empty();
  for (const UndecidedElement& e : simulation.undecided_elements) {
    if (e.input != g.input || (local && e.part != place.rank)) continue;
    const auto& truth = local ? g.truth_by_rank[static_cast<std::size_t>(e.part)] : g.truth_full;
    if (truth && index_of(truth->shape(), e.element) == place.index) return e.why;
  }
  return "";
}

// Says what the code takes out of autograd, or makes of a gradient in a hook.
std::string texts_of(const std::vector<std::string>& cuts) {
  constexpr std::size_t kMost = 3;
  std::string text;
  for (std::size_t i = 0; i < cuts.size() && i < kMost; ++i) text += (i ? "; " : "") + cuts[i];
  if (cuts.size() > kMost) text += fmt::format("; and {} more", cuts.size() - kMost);
  return text;
}

// Says why the ranks' gradients are what the code means.
std::string meaning_text(const std::vector<std::string>& cuts) {
  constexpr std::string_view kHook = "a hook: ";
  std::vector<std::string> held, hooks;
  for (const std::string& cut : cuts)
    if (cut.starts_with(kHook))
      hooks.push_back(cut.substr(kHook.size()));
    else
      held.push_back(cut);
  const std::string changes = "a hook that changes the gradient: " + texts_of(hooks);
  if (held.empty()) return "It is that slope but for " + changes;
  return fmt::format(
      "It is the slope with this held fixed, which the code takes out of autograd: {}{}",
      texts_of(held), hooks.empty() ? "" : "; but for " + changes);
}

}  // namespace

std::string dispute(const Case& which, const SimulateRequest& asked, const Simulation& simulation,
                    const DistributedRun& run, const CaseComparison& comparison) {
  const GradientComparison* g = first_differing(comparison);
  if (!g || comparison.forward || comparison.truth || comparison.program) return "";
  Simulation lenient = simulation;
  open_bounds(simulation.undecided_elements, lenient.bounds);
  if (!simulation.undecided_elements.empty() &&
      compare(which, asked, lenient, &run).gradients_equal())
    return fmt::format("{}; {}", difference_text(*g), why_undecided(*g, simulation));
  if (simulation.held.empty()) return "";
  const IntendedTruth meant = as_intended(asked, simulation);
  if (!compare(which, meant.asked, meant.simulation, &run).gradients_equal()) return "";
  return fmt::format("{}. {}", difference_text(*g), meaning_text(simulation.cuts));
}

IntendedTruth as_intended(SimulateRequest asked, Simulation simulation) {
  if (!simulation.held.empty()) {
    asked.weights.resize(1);
    simulation.gradients = {simulation.held};
  }
  open_bounds(simulation.undecided_elements, simulation.bounds);
  return {std::move(asked), std::move(simulation)};
}

bool could_be_rounding(const Case& which, const Simulation& simulation,
                       const CaseComparison& comparison) {
  const bool derived =
      !which.scenario || which.scenario->tolerance.kind == Tolerance::Kind::kDerived;
  return derived && rounds(which, simulation) && !comparison.truth && !comparison.program &&
         std::ranges::all_of(comparison.gradients, [](const GradientComparison& g) {
           // Not finite is what overflows in a narrower dtype.
           return g.equal || !std::isfinite(g.max_abs_error) ||
                  g.max_abs_error <= kMostOfBound * g.bound;
         });
}

bool bounds_may_hide_mistakes(const Case& which, const SimulateRequest& asked,
                              const Simulation& simulation) {
  if (asked.program.is_widened || !rounds(which, simulation) || simulation.gradients.empty() ||
      simulation.is_right_in_float64)
    return false;
  for (std::size_t i = 0; i < simulation.bounds.size(); ++i)
    for (const auto& part : simulation.bounds[i].parts)
      if (part && largest_magnitude(part->values()) > kHides * largest_gradient(simulation, i))
        return true;
  return false;
}

std::string dispute_about_rounding(const Case& which, const Simulation& simulation,
                                   const CaseComparison& comparison) {
  const GradientComparison* g = first_differing(comparison);
  const std::string text = g ? difference_text(*g) : "the forward values differ";
  if (which.dtype == DType::kFloat64)
    return fmt::format(
        "{}; without the code's casts ({}) the gradients are right, so that it is a "
        "matter of their rounding",
        text, texts_of(simulation.casts));
  return fmt::format(
      "{}; in float64 the case matches, so that it is a matter of rounding in {}: give a "
      "\"tolerance\"",
      text, traits(which.dtype).name);
}

}  // namespace distgrad
