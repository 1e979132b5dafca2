#include "judge/forward_findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "judge/closeness.h"
#include "judge/phrases.h"
#include "model/element_index.h"
#include "model/gradient_norm.h"

namespace distgrad {
namespace {

constexpr std::size_t kShownRanks = 4;

std::string guarded_value(const GuardDifference& d) {
  if (d.input.empty()) return "";
  return d.input + (d.rank >= 0 ? fmt::format(" on rank {}", d.rank) : "") + index_phrase(d.index);
}

// Returns the factor between every rank's forward value and the right one, if it is one number.
std::optional<double> factor_of_forward(const std::vector<Array>& distributed,
                                        const std::vector<Array>& simulated, double roundoff) {
  std::optional<double> factor;
  std::int64_t compared = 0;
  for (std::size_t rank = 0; rank < simulated.size(); ++rank) {
    if (rank >= distributed.size() || distributed[rank].shape() != simulated[rank].shape())
      return std::nullopt;
    const auto have = distributed[rank].values(), should = simulated[rank].values();
    for (std::size_t i = 0; i < should.size(); ++i) {
      if (should[i] == 0 && have[i] == 0) continue;
      if (should[i] == 0 || have[i] == 0 || !std::isfinite(have[i] / should[i]))
        return std::nullopt;
      if (!factor) factor = have[i] / should[i];
      if (std::abs(have[i] / should[i] - *factor) > 64 * roundoff * std::abs(*factor))
        return std::nullopt;
      ++compared;
    }
  }
  // One element is always some number times another, and a factor near 1 says nothing.
  if (compared < 2 || std::abs(*factor - 1) < 1e-3) return std::nullopt;
  const double whole = std::abs(*factor) < 1 ? 1 / std::round(1 / *factor) : std::round(*factor);
  return std::abs(*factor - whole) <= 64 * roundoff * std::abs(whole) ? whole : *factor;
}

// Returns the index of the element that is furthest off. Both tensors must have one shape.
std::vector<std::int64_t> furthest_off(const Array& held, const Array& wanted) {
  if (held.shape() != wanted.shape()) return {};
  std::int64_t furthest = 0;
  double most = -1;
  for (std::int64_t i = 0; i < wanted.size(); ++i)
    if (const double off = std::abs(held[i] - wanted[i]); off > most || std::isnan(off))
      most = off, furthest = i;
  return index_of(wanted.shape(), furthest);
}

// Returns "; nowhere by more than 0.2 % of the largest value: ..." if that is so little that a cast
// may be the only cause.
std::string narrowness_phrase(const ForwardDifference& d) {
  // Equals half a unit in the last place of bfloat16, times two for a sum of two such values.
  constexpr double kMostOfACast = 1.0 / 128;
  double off = 0, largest = 0;
  for (const int rank : d.ranks) {
    const Array &held = d.distributed[static_cast<std::size_t>(rank)],
                &wanted = d.simulated[static_cast<std::size_t>(rank)];
    if (held.shape() != wanted.shape()) return "";
    largest = std::max(largest, largest_magnitude(wanted.values()));
    for (std::int64_t i = 0; i < wanted.size(); ++i) {
      if (!std::isfinite(held[i] - wanted[i])) return "";
      off = std::max(off, std::abs(held[i] - wanted[i]));
    }
  }
  if (largest == 0 || off > kMostOfACast * largest) return "";
  return fmt::format(
      "; nowhere by more than {:.2g} of the largest value, as after a detour over a narrower dtype "
      "(what is meant so, a compression, needs an explicit \"tolerance\" in the scenario)",
      off / largest);
}

}  // namespace

std::optional<Finding> truth_finding(const Evidence& evidence) {
  const auto& d = evidence.comparison().truth;
  if (!d) return std::nullopt;
  Finding finding{.rule = "truth", .factor = d->factor};
  if (d->rank >= 0) finding.ranks = {d->rank};
  finding.text = fmt::format(
      "The file's truth for {} is {}, the program gives {}{}. Either the figure is wrong, or the "
      "steps, the loss or the objective are not what was meant.",
      guarded_value(*d), element_phrase(d->wanted, d->index),
      element_phrase(d->simulated, d->index),
      d->factor ? ", " + factor_of_exact(evidence.program(), *d->factor).of("the file's") : "");
  return finding;
}

std::optional<Finding> program_finding(const Evidence& evidence) {
  const auto& d = evidence.comparison().program;
  if (!d) return std::nullopt;
  Finding finding{.rule = "program", .factor = d->factor};
  const std::string what =
      d->input.empty() ? "The distributed program computes another loss than single_device: the "
                         "objective is"
                       : "The distributed program's loss is single_device's, but its gradient is "
                         "not: of " +
                             guarded_value(*d) + " it is";
  finding.text =
      fmt::format("{} {}, single_device gives {}", what, element_phrase(d->simulated, d->index),
                  element_phrase(d->wanted, d->index));
  if (d->factor)
    finding.text +=
        "; all of it is " + factor_of_exact(evidence.program(), *d->factor).of("what it should be");
  finding.text +=
      ". No backward rule can mend that: look for a size that is divided by twice or not at all, "
      "an average of averages over unequal pieces, or a term that every rank adds.";
  return finding;
}

std::optional<Finding> forward_finding(const Evidence& evidence) {
  const auto& d = evidence.comparison().forward;
  if (!d) return std::nullopt;
  Finding finding{.rule = "forward", .step = d->step, .ranks = d->ranks};
  for (const Step* step : evidence.collectives())
    if (step->name == d->step)
      finding.collective = std::string(traits(step->collective()->kind).name);
  std::vector<std::string> values;
  for (std::size_t i = 0; i < std::min(kShownRanks, d->ranks.size()); ++i) {
    const auto rank = static_cast<std::size_t>(d->ranks[i]);
    const Array &held = d->distributed[rank], &wanted = d->simulated[rank];
    if (held.shape() != wanted.shape()) {
      values.push_back(fmt::format("rank {} has the shape [{}] instead of [{}]", rank,
                                   fmt::join(held.shape(), ", "), fmt::join(wanted.shape(), ", ")));
      continue;
    }
    // If both print alike, show the element that differs instead.
    const bool first = d->ranks[i] == d->rank, alike = array_phrase(held) == array_phrase(wanted);
    const auto index = first || !alike ? d->index : furthest_off(held, wanted);
    const auto shown = [&](const Array& a) {
      return first || alike ? element_phrase(a, index) : array_phrase(a);
    };
    values.push_back(fmt::format("rank {}{} has {} instead of {}", rank,
                                 first || alike ? index_phrase(index) : "", shown(held),
                                 shown(wanted)));
  }
  if (d->step.empty() && inner_of_gradient_norm(evidence.program().loss.text)) {
    finding.text = fmt::format(
        "The norm of the gradients differs: {}. So the first backward, of which it is made, is "
        "wrong already; run the case with what stands in squared_gradient_norm(...) as its loss.",
        enumeration(values));
    return finding;
  }
  const bool is_code = finding.collective.empty();
  const std::string what = d->step.empty() ? "the loss"
                           : is_code       ? "step " + d->step
                                     : fmt::format("step {} ({})", d->step, finding.collective);
  const std::optional<double> factor =
      factor_of_forward(d->distributed, d->simulated, unit_roundoff(evidence.program().dtype));
  finding.text = fmt::format(
      "The forward value differs already: in {}, {}{}. Until that is right its gradient means "
      "little; look at {}.",
      what, enumeration(values),
      factor
          ? "; all of it is " + factor_of_exact(evidence.program(), *factor).of("what it should be")
          : narrowness_phrase(*d),
      is_code ? "what it computes, and whether asynchronous collectives in it are waited for"
              : "the op, the order of the ranks and the buffers of the collective, and whether an "
                "asynchronous one is waited for");
  return finding;
}

}  // namespace distgrad
