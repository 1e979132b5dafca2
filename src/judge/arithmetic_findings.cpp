#include "judge/arithmetic_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "judge/closeness.h"
#include "judge/phrases.h"
#include "judge/precision_names.h"
#include "judge/sync_findings.h"

namespace distgrad {
namespace {

// A gradient must be this many times its bound to differ from the rounding of a zero.
constexpr double kNoise = 4;

bool parts_agree(const ComparedPart& a, const ComparedPart& b) {
  if (!a.observed || !b.observed) return a.observed.has_value() == b.observed.has_value();
  if (a.observed->shape() != b.observed->shape()) return false;
  const double own = 0x1p-50 * largest_magnitude(a.truth.values());
  const auto bound = [&](std::size_t i) {
    return a.bound && a.bound->values()[i] > 0 ? 2 * a.bound->values()[i] + own : 0;
  };
  return difference(a.observed->values(), b.observed->values(), bound).equal;
}

// Replicates the input's invariant axes without sync, so that assemble() sums over them.
Input summed_where_invariant(const Input& input) {
  Input relaxed = input;
  // A sync that names no axis would take in the axes relaxed here, so spell it by axis.
  std::vector<std::pair<std::string, Input::Sync>> sync;
  for (const auto& [axis, how] : input.sync) {
    if (!axis.empty() || input.layout.size() == 1) {
      sync.push_back({axis, how});
      continue;
    }
    for (const AxisLayout& entry : input.layout)
      if (entry.layout.kind == Layout::Kind::kReplicate) sync.push_back({entry.axis, how});
  }
  relaxed.sync = std::move(sync);
  for (AxisLayout& entry : relaxed.layout)
    if (entry.layout.kind == Layout::Kind::kInvariant) entry.layout.kind = Layout::Kind::kReplicate;
  return relaxed;
}

bool sum_is_truth(const Evidence& evidence, std::size_t i) {
  const Input& input = *evidence.inputs()[i];
  const GradientComparison& g = evidence.comparison().gradients[i];
  const auto parts = assemble(evidence.program(), summed_where_invariant(input),
                              g.truth_full->shape(), g.observed_by_rank);
  const std::optional<Array>* bounds = nullptr;
  if (i < evidence.simulation().bounds.size()) bounds = &evidence.simulation().bounds[i].parts[0];
  for (const Part& part : parts) {
    if (!part.value || part.value->shape() != g.truth_full->shape()) return false;
    const auto bound = [&](std::size_t e) {
      const double b = bounds && *bounds ? (*bounds)->values()[e] : 0;
      return b == 0 ? 0 : evidence.program().world_size * b;
    };
    if (!difference(part.value->values(), g.truth_full->values(), bound).equal) return false;
  }
  return true;
}

}  // namespace

bool lacks_only_zeros(const Evidence& evidence) {
  const std::vector<int> without = evidence.ranks_without_gradient();
  const auto& gradients = evidence.comparison().gradients;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].equal) continue;
    for (const int rank : without) {
      const auto r = static_cast<std::size_t>(rank);
      if (gradients[i].observed_by_rank[r]) continue;
      // It cannot be told whose share of a sum or a joined tensor is wrong.
      const bool is_own = evidence.inputs()[i]->is_local() && gradients[i].truth_by_rank[r];
      if (!is_own ||
          largest_magnitude(gradients[i].truth_by_rank[r]->values()) > evidence.largest_bound(i))
        return false;
    }
  }
  return true;
}

std::optional<Finding> no_gradient_finding(const Evidence& evidence, const Step* step) {
  const std::vector<int> ranks = evidence.ranks_without_gradient();
  if (ranks.empty()) return std::nullopt;
  Finding finding{.rule = "no-gradient", .ranks = ranks};
  std::vector<std::string> names;
  for (const GradientComparison& g : evidence.comparison().gradients)
    if (std::any_of(ranks.begin(), ranks.end(),
                    [&](int r) { return !g.observed_by_rank[static_cast<std::size_t>(r)]; }))
      names.push_back(g.input);
  const std::string what = fmt::format("{} got no gradient (None) {}", enumeration(names),
                                       on_ranks(ranks, evidence.program().world_size));
  if (lacks_only_zeros(evidence)) {
    finding.text = what +
                   ". What is missing is zero in the truth, so nothing is lost, but code "
                   "that reads .grad must expect None.";
    return finding;
  }
  if (step) {
    finding.step = step->name;
    finding.collective = std::string(traits(step->collective()->kind).name);
    finding.text = fmt::format(
        "{}: step {} ({}) has no backward, so the loss does not lead back through it. Use a "
        "differentiable collective: a plain torch.distributed call into a new tensor is cut off "
        "from the graph.",
        what, step->name, finding.collective);
  } else {
    finding.text =
        what +
        ": nothing leads from the loss back to it there. Look for a detach, a collective without a "
        "backward, a backward that returns None, or a value that is not used.";
  }
  return finding;
}

std::vector<std::string> satisfied_objectives(const Evidence& evidence) {
  std::map<std::string, bool> all;
  std::vector<std::string> order;
  for (const GradientComparison& g : evidence.comparison().gradients)
    for (const auto& [objective, matches] : g.matches) {
      if (!all.contains(objective)) order.push_back(objective);
      all[objective] = all.contains(objective) ? all[objective] && matches : matches;
    }
  // Gradients that are zero, but for rounding, match any objective and so support none.
  const auto has_a_gradient = [&](const std::string& name) {
    const auto& gradients = evidence.comparison().gradients;
    for (std::size_t i = 0; i < gradients.size(); ++i)
      for (const auto& [objective, truth] : gradients[i].truth_by_objective)
        if (objective == name)
          for (const auto& part : truth)
            if (part && largest_magnitude(part->values()) > kNoise * evidence.largest_bound(i))
              return true;
    return false;
  };
  const bool one_loss = all.contains("replicated") && all["replicated"];
  std::vector<std::string> satisfied;
  for (const std::string& name : order) {
    if (!all[name] || name == spelled(evidence.which().objective) || !has_a_gradient(name))
      continue;
    if (one_loss && name.starts_with("rank:")) continue;  // the same loss
    satisfied.push_back(name);
  }
  return satisfied;
}

std::optional<Finding> objective_finding(const Evidence& evidence,
                                         const std::optional<Scaling>& scaling) {
  const std::vector<std::string> satisfied = satisfied_objectives(evidence);
  if (satisfied.empty()) return std::nullopt;
  Finding finding{.rule = "objective", .ranks = evidence.differing_ranks()};
  if (scaling) finding.factor = scaling->common;
  std::vector<std::string> meant;
  for (const std::string& name : satisfied)
    meant.push_back(fmt::format("\"{}\" ({})", name, meaning_of_objective(name)));
  const std::string declared = spelled(evidence.which().objective);
  finding.text = fmt::format(
      "{}: they are right for the objective {}, not for the declared \"{}\" ({}). Declare what the "
      "training means, or weight the losses accordingly.",
      how_they_differ(evidence, scaling), enumeration(meant), declared,
      meaning_of_objective(declared));
  return finding;
}

std::optional<Finding> scaled_finding(const Evidence& evidence,
                                      const std::optional<Scaling>& scaling) {
  if (!scaling) return std::nullopt;
  Finding finding{.rule = "scaled", .ranks = evidence.differing_ranks(), .factor = scaling->common};
  if (!scaling->common) {
    std::vector<std::string> each;
    for (const auto& [input, factor] : scaling->by_input)
      each.push_back(fmt::format("that of {} is {}", evidence.comparison().gradients[input].input,
                                 factor_of_exact(evidence.program(), factor).of("the truth")));
    finding.text = "Each gradient is the truth times a constant of its own: " + enumeration(each) +
                   ". Look for what sums or divides one of them and not the other.";
    return finding;
  }
  const double factor = *scaling->common;
  const NamedFactor named = factor_of_exact(evidence.program(), factor);
  finding.text = how_they_differ(evidence, scaling) +
                 (named.meaning.empty() ? "." : " (" + named.meaning + ").");
  if (factor == 0) {
    finding.text += " Nothing of the loss's cotangent came through.";
  } else if (named.is_size) {
    finding.text +=
        std::abs(factor) > 1
            ? " Look for cotangents or gradients that are summed once too often, or a "
              "division by the size that is missing."
            : " Look for a sum over the ranks that is missing, or a division by the size "
              "too many.";
  } else if (factor < 0) {
    finding.text += " The sign is turned: look for a minus in a backward.";
  }
  return finding;
}

std::vector<Finding> unsynchronised_findings(const Evidence& evidence) {
  std::vector<Finding> findings;
  for (const std::size_t i : evidence.differing_inputs()) {
    const GradientComparison& g = evidence.comparison().gradients[i];
    if (evidence.inputs()[i]->is_local()) continue;
    std::vector<const ComparedPart*> parts;
    for (const ComparedPart& part : evidence.parts())
      if (part.input == i) parts.push_back(&part);
    std::vector<int> apart;
    for (const ComparedPart* part : parts)
      if (!parts_agree(*part, *parts[0]))
        apart.insert(apart.end(), part->ranks.begin(), part->ranks.end());
    if (has_invariant_axis(*evidence.inputs()[i]) && sum_is_truth(evidence, i))
      findings.push_back(
          {"missing-reduction",
           "",
           "",
           g.differing_ranks,
           {},
           fmt::format(
               "Each rank holds only its own share of the gradient of {}: the shares add up "
               "to the truth. Sum them, in backward (a copy whose backward is an all_reduce) "
               "or after it.",
               g.input)});
    if (apart.empty()) continue;
    std::sort(apart.begin(), apart.end());
    findings.push_back(
        {"unsynchronised",
         "",
         "",
         apart,
         {},
         fmt::format("The ranks must hold the same gradient of {} but {} differs from that of rank "
                     "{}: their weights would drift apart. All-reduce the gradient, or the "
                     "cotangent that it comes from.",
                     g.input, "what is " + on_ranks(apart, evidence.program().world_size),
                     parts[0]->ranks.front())});
  }
  return findings;
}

namespace {

// Returns true if the elements that differ show the dtype: they are numbers of it, and the right
// ones are not. It asks for several, as a gradient that is wrong otherwise may be 1 everywhere.
bool shows(const Evidence& evidence, DType narrow) {
  constexpr std::size_t kSeveral = 3;
  std::set<double> seen;
  for (const ComparedPart& part : evidence.parts())
    for (std::size_t e = 0; e < part.truth.values().size(); ++e) {
      const double observed = part.observed->values()[e], truth = part.truth.values()[e];
      const double bound = part.bound ? part.bound->values()[e] : 0;
      if (std::abs(observed - truth) <= bound) continue;
      if (rounded_to(narrow, observed) != observed) return false;
      if (std::abs(rounded_to(narrow, truth) - truth) <= bound) return false;
      seen.insert(observed);
    }
  return seen.size() >= kSeveral;
}

bool is_near(const ComparedPart& part, DType narrow, std::size_t ranks, bool by_element) {
  if (!part.observed || part.observed->shape() != part.truth.shape()) return false;
  const auto truth = part.truth.values();
  const double largest = largest_magnitude(truth);
  return difference(part.observed->values(), truth,
                    [&](std::size_t e) {
                      return room_of_detour(narrow, ranks,
                                            by_element ? std::abs(truth[e]) : largest) +
                             (part.bound ? part.bound->values()[e] : 0);
                    })
      .equal;
}

std::optional<Finding> rounded(const Evidence& evidence, const std::optional<Scaling>& scaling,
                               bool is_of_code) {
  const auto ranks = static_cast<std::size_t>(evidence.program().world_size);
  for (const DType narrow : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    if (unit_roundoff(narrow) <= unit_roundoff(evidence.program().dtype)) continue;
    if (!std::ranges::all_of(evidence.parts(), [&](const ComparedPart& part) {
          return is_near(part, narrow, ranks, is_of_code);
        }))
      continue;
    if (is_of_code && narrow != DType::kFloat32 && !shows(evidence, narrow)) continue;
    return Finding{
        .rule = "precision",
        .ranks = evidence.differing_ranks(),
        .text = fmt::format(
            "{}, by no more than {} rounds: something on the way back went through it. "
            "{}",
            how_they_differ(evidence, scaling), traits(narrow).name, help_with("precision"))};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Finding> precision_finding(const Evidence& evidence,
                                         const std::optional<Scaling>& scaling) {
  return rounded(evidence, scaling, false);
}

std::optional<Finding> precision_of_code(const Evidence& evidence,
                                         const std::optional<Scaling>& scaling) {
  return rounded(evidence, scaling, true);
}

std::optional<Finding> stale_finding(const Evidence& evidence) {
  std::vector<int> ranks;
  for (const ComparedPart& part : evidence.parts()) {
    if (!part.observed || part.observed->shape() != part.truth.shape()) continue;
    const auto observed = part.observed->values(), truth = part.truth.values();
    for (std::size_t i = 0; i < truth.size(); ++i)
      if (std::isnan(observed[i]) && std::isfinite(truth[i])) {
        ranks.insert(ranks.end(), part.ranks.begin(), part.ranks.end());
        break;
      }
  }
  if (ranks.empty()) return std::nullopt;
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return Finding{
      "stale-or-aliased",
      "",
      "",
      ranks,
      {},
      fmt::format("There is NaN {} where the truth is a number. New memory is filled with "
                  "NaN in these runs: a buffer is read that was never written, or a NaN is "
                  "computed, as 0/0 is.",
                  on_ranks(ranks, evidence.program().world_size))};
}

}  // namespace distgrad
