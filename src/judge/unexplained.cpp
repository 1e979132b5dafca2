#include "judge/unexplained.h"

#include <fmt/format.h>

#include "judge/phrases.h"

namespace distgrad {

Finding unexplained_finding(const Evidence& evidence, const std::string& why) {
  Finding finding{.rule = "unexplained", .ranks = evidence.differing_ranks()};
  finding.text = how_they_differ(evidence, std::nullopt) + ".";
  for (const std::size_t i : evidence.differing_inputs()) {
    const GradientComparison& g = evidence.comparison().gradients[i];
    if (!g.first_difference) continue;
    const auto [observed, truth] = at_first_difference(g);
    finding.text += fmt::format(
        " First on rank {}, {}{}: {}, the truth is {}.", g.first_difference->rank, g.input,
        index_phrase(g.first_difference->index), observed.value_or("no gradient"), truth);
    break;
  }
  finding.text += " " + why;
  return finding;
}

}  // namespace distgrad
