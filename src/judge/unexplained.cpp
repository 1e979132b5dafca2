#include "judge/unexplained.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "judge/phrases.h"

namespace distgrad {
Finding unexplained_finding(const Evidence& evidence, const std::string& why) {
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
  finding.text += " " + why;
  return finding;
}

}  // namespace distgrad
