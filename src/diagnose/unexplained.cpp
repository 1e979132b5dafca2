#include "diagnose/unexplained.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "diagnose/phrases.h"

namespace distgrad {
namespace {

std::string plural(std::size_t n) { return n == 1 ? "" : "s"; }

bool contains(const std::vector<std::size_t>& all, std::size_t one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

// The gradient of a later step's operand would be wrong, too, for inputs that only that one bears
// on. So backward is right up to the last step that bears on all that differs, as far as the
// gradients can show.
const Step* where_they_part(const Evidence& evidence, const Bearing& bearing) {
  const std::vector<std::size_t> differing = evidence.differing_inputs();
  for (auto it = bearing.rbegin(); it != bearing.rend(); ++it)
    if (std::all_of(differing.begin(), differing.end(),
                    [&](std::size_t i) { return contains(it->second, i); }))
      return it->first;
  return nullptr;
}

std::string place_phrase(const Evidence& evidence, const Bearing& bearing) {
  if (bearing.empty()) return "";
  const Step* step = where_they_part(evidence, bearing);
  if (!step)
    return " No collective bears on all that differs: look at each input's own way to the loss.";
  return fmt::format(
      " In the order of backward, step {} ({}) is the first place where they can part: all that "
      "differs lies behind it. Look at its backward, and at what comes before it in the program.",
      step->name, traits(step->collective()->kind).name);
}

std::string code_phrase(const Program& program) {
  std::vector<std::string> calls;
  for (const Step& step : program.steps)
    if (step.code()) calls.push_back(fmt::format("{} (step {})", step.code()->code, step.name));
  return fmt::format(" Look at the backward of {}: whether each collective in it has its adjoint.", enumeration(calls));
}

const Step* blamed(const Evidence& evidence, const Bearing& bearing) {
  return bearing.empty() ? nullptr : where_they_part(evidence, bearing);
}

}  // namespace

Finding unexplained_finding(const Evidence& evidence, const Bearing& bearing) {
  Finding finding{.rule = "unexplained",
                  .collective = "",
                  .step = "",
                  .ranks = evidence.differing_ranks(),
                  .factor = {},
                  .text = ""};
  finding.text = how_they_differ(evidence, std::nullopt) + ".";
  for (const std::size_t i : evidence.differing_inputs()) {
    const GradientComparison& g = evidence.comparison().gradients[i];
    if (!g.first_difference) continue;
    const auto rank = static_cast<std::size_t>(g.first_difference->rank);
    const bool by_rank = evidence.inputs()[i]->is_local();
    std::optional<Array> observed, truth;
    if (by_rank) {
      observed = g.observed_by_rank[rank];
      truth = g.truth_by_rank[rank];
    } else {
      observed = g.observed_full ? g.observed_full : g.observed_by_rank[rank];
      truth = g.truth_full;
    }
    const bool same_shape = observed && truth && observed->shape() == truth->shape();
    finding.text += fmt::format(
        " First on rank {}, {}{}: {}, the truth is {}.", rank, g.input,
        index_phrase(g.first_difference->index),
        !observed    ? std::string("no gradient")
        : same_shape ? element_phrase(*observed, g.first_difference->index)
                     : fmt::format("shape [{}]", fmt::join(observed->shape(), ", ")),
        !truth                    ? std::string("unknown")
        : same_shape || !observed ? element_phrase(*truth, g.first_difference->index)
                                  : fmt::format("of shape [{}]", fmt::join(truth->shape(), ", ")));
    break;
  }
  if (const Step* step = blamed(evidence, bearing)) {
    finding.step = step->name;
    finding.collective = std::string(traits(step->collective()->kind).name);
  }
  finding.text += place_phrase(evidence, bearing);
  const std::size_t steps = evidence.collectives().size();
  if (has_code(evidence.program().steps)) {
    finding.text += code_phrase(evidence.program());
    return finding;
  }
  finding.text += fmt::format(
      " No backward rule in use reproduces it, for {} {} collective{} or several together.",
      steps == 1 ? "the" : "any of the", steps == 1 ? "one" : std::to_string(steps), plural(steps));
  return finding;
}

}  // namespace distgrad
