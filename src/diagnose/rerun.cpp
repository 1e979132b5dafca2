#include "diagnose/rerun.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "diagnose/phrases.h"
#include "diagnose/rewriting.h"
#include "gradients/closeness.h"
#include "gradients/rounding_room.h"

namespace distgrad {
namespace {

constexpr std::size_t kMostSteps = 4;  // made contiguous, each with a run of its own

// By input, what each rank holds after the leftover divisors; nothing where some rank failed.
std::optional<std::vector<GradientByRank>> gradients_of(const DistributedRun& run,
                                                        const Replayer& replayer,
                                                        std::size_t inputs) {
  if (run.error) return std::nullopt;
  std::vector<GradientByRank> gradients(inputs);
  for (const RankResult& rank : run.ranks) {
    if (rank.error || !rank.skipped.empty() || rank.gradients.size() != inputs) return std::nullopt;
    for (std::size_t i = 0; i < inputs; ++i) gradients[i].push_back(rank.gradients[i]);
  }
  return replayer.after_divisors(std::move(gradients));
}

bool is_same(const std::optional<Array>& a, const std::optional<Array>& b, double bound) {
  if (!a || !b) return a.has_value() == b.has_value();
  return a->shape() == b->shape() &&
         difference(a->values(), b->values(), [&](std::size_t) { return bound; }).equal;
}

std::vector<int> ranks_that_differ(const Evidence& evidence,
                                   const std::vector<GradientByRank>& again) {
  std::set<int> ranks;
  for (std::size_t i = 0; i < again.size(); ++i) {
    const GradientByRank& first = evidence.comparison().gradients[i].observed_by_rank;
    // What the file lets pass is no sign of chance either.
    const Tolerance& tolerance = evidence.tolerance();
    // Code that rounds otherwise does so in both runs alike.
    const double room = rounding_room(evidence.simulation(), i, evidence.which().subject, evidence.program().dtype);
    double bound = 2 * (evidence.largest_bound(i) - room);
    for (const auto& part : first)
      if (part && tolerance.kind == Tolerance::Kind::kExplicit)
        bound = std::max(bound,
                         2 * (tolerance.atol + tolerance.rtol * largest_magnitude(part->values())));
    for (std::size_t r = 0; r < first.size() && r < again[i].size(); ++r)
      if (!is_same(first[r], again[i][r], bound)) ranks.insert(static_cast<int>(r));
  }
  return {ranks.begin(), ranks.end()};
}

// Whether another run, with one step rewritten so that its value stays, gives the truth.
bool is_mended_by(const Evidence& evidence, const Replayer& replayer, const Rerun& rerun,
                  const Step& step, const std::string& rewriting) {
  Program program = evidence.program();
  rewrite(program, {{step.name, rewriting}});
  const auto run = rerun(program);
  const auto again = run ? gradients_of(*run, replayer, evidence.inputs().size()) : std::nullopt;
  return again && replayer.is_truth(*again);
}

}  // namespace

std::optional<Finding> nondeterministic_finding(const Evidence& evidence, const Replayer& replayer,
                                                const Rerun& rerun) {
  const auto run = rerun(evidence.program());
  if (!run) return std::nullopt;
  const auto again = gradients_of(*run, replayer, evidence.inputs().size());
  if (!again) return std::nullopt;
  const std::vector<int> ranks = ranks_that_differ(evidence, *again);
  if (ranks.empty()) return std::nullopt;
  return Finding{
      "nondeterministic",
      "",
      "",
      ranks,
      {},
      fmt::format("A second run of the same case gives other gradients {}. Look for memory that is "
                  "read before it is written or while a collective still writes it (a wait() that "
                  "is missing), for what is kept from one call to the next (a buffer, a counter), for random "
                  "numbers, and for an order that is left to chance.",
                  on_ranks(ranks, evidence.program().world_size))};
}

std::optional<Finding> memory_finding(const Evidence& evidence, const Replayer& replayer,
                                      const Rerun& rerun) {
  if (!replayer.adjoint()) return std::nullopt;
  std::vector<const Step*> steps = evidence.collectives();
  std::reverse(steps.begin(), steps.end());
  if (steps.size() > kMostSteps) steps.resize(kMostSteps);
  for (const Step* step : steps) {
    if (!is_mended_by(evidence, replayer, rerun, *step, "contiguous:")) continue;
    const std::string collective(traits(step->collective()->kind).name);
    Finding finding{"contiguity", collective, step->name, evidence.differing_ranks(), {}, ""};
    // Contiguous copies are memory of its own as well: whether that is what it takes.
    if (is_mended_by(evidence, replayer, rerun, *step, "cloned:")) {
      finding.rule = "stale-or-aliased";
      finding.text = fmt::format(
          "{}: with copies of operand and cotangent at the {}, of which nobody else reads, and "
          "nothing "
          "else changed, a second run gives the right ones. Its backward writes to memory that "
          "others read: .clone() the cotangent first.",
          how_they_differ(evidence, std::nullopt), collective);
    } else {
      finding.text = fmt::format(
          "{}: with a contiguous operand and a contiguous copy of the cotangent at the {}, and "
          "nothing else changed, a second run gives the right ones. Call .contiguous() on both "
          "before they go to the collective.",
          how_they_differ(evidence, std::nullopt), collective);
    }
    return finding;
  }
  return std::nullopt;
}

}  // namespace distgrad
