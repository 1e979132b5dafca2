#include "judge/missing_share.h"

#include <fmt/format.h>

#include <algorithm>

#include "judge/closeness.h"

namespace distgrad {
namespace {

constexpr int kLargestWorld = 8;

using Shares = std::vector<std::vector<GradientByRank>>;  // by loss, input, rank

class ByLoss {
 public:
  ByLoss(Machine& machine, const Evidence& evidence) : evidence_(evidence) {
    const auto weights = backward_weights(evidence.program(), evidence.which().objective,
                                          evidence.divides_replicated());
    SimulateRequest request;
    request.program = evidence.program();
    for (std::size_t r = 0; r < weights.size(); ++r) {
      request.weights.emplace_back(weights.size(), 0.0);
      request.weights.back()[r] = weights[r];
    }
    request.leaves_by_rank = true;
    request.with_bounds = false;
    request.with_guards = false;
    const Simulation simulation = machine.simulate(request);
    if (simulation.invalid) return;
    for (const std::vector<Gradient>& row : simulation.gradients) {
      shares_.emplace_back();
      for (const Gradient& g : row) shares_.back().push_back(g.parts);
    }
    for (std::size_t i = 0; i < evidence.program().inputs.size(); ++i)
      if (evidence.program().inputs[i].requires_grad)
        divisors_.push_back(post_sync_divisors(evidence.program(), evidence.which().objective,
                                               evidence.divides_replicated())[i]);
  }

  bool is_known() const { return std::ssize(shares_) == evidence_.program().world_size; }

  // Returns true if the ranks hold the sum of the shares for which counts(rank, loss) is true.
  template <class Counts>
  bool is_observed(const Counts& counts) const {
    for (std::size_t i = 0; i < evidence_.inputs().size(); ++i) {
      GradientByRank sum(shares_.size());
      for (std::size_t r = 0; r < shares_.size(); ++r)
        for (std::size_t loss = 0; loss < shares_.size(); ++loss)
          if (counts(r, loss)) add(sum[r], shares_[loss][i][r]);
      const auto held = synchronised(evidence_.program(), *evidence_.inputs()[i], sum);
      if (!is_near(divided(held, divisors_[i]), i)) return false;
    }
    return true;
  }

 private:
  static void add(std::optional<Array>& sum, const std::optional<Array>& term) {
    if (!term) return;
    std::vector<double> values(term->values().begin(), term->values().end());
    for (std::size_t e = 0; sum && e < values.size(); ++e) values[e] += sum->values()[e];
    sum = Array(term->shape(), std::move(values));
  }

  bool is_near(const GradientByRank& wanted, std::size_t i) const {
    constexpr double kRoundings = 64;
    const GradientByRank& observed = evidence_.comparison().gradients[i].observed_by_rank;
    double largest = 0;
    for (const auto& g : wanted)
      if (g) largest = std::max(largest, largest_magnitude(g->values()));
    const double slack = evidence_.largest_bound(i) +
                         kRoundings * unit_roundoff(evidence_.program().dtype) * largest;
    for (std::size_t r = 0; r < wanted.size(); ++r) {
      if (!wanted[r] || !observed[r]) return false;
      if (wanted[r]->shape() != observed[r]->shape()) return false;
      if (!difference(observed[r]->values(), wanted[r]->values(), [&](std::size_t) {
             return slack;
           }).equal)
        return false;
    }
    return true;
  }

  const Evidence& evidence_;
  Shares shares_;
  std::vector<double> divisors_;
};

}  // namespace

std::optional<Finding> missing_share_finding(Machine& machine, const Evidence& evidence) {
  const int n = evidence.program().world_size;
  if (n < 2 || n > kLargestWorld || evidence.inputs().empty()) return std::nullopt;
  const ByLoss shares(machine, evidence);
  if (!shares.is_known()) return std::nullopt;
  Finding finding{"missing-reduction", "", "", evidence.differing_ranks(), {}, ""};
  if (shares.is_observed([](std::size_t rank, std::size_t loss) { return rank == loss; })) {
    finding.text =
        "Each rank's gradient holds only what its own loss contributes; what the other ranks' "
        "losses contribute through the collectives is missing. Sum the cotangents over the ranks "
        "in backward.";
    return finding;
  }
  for (int without = 0; without < n; ++without) {
    if (!shares.is_observed(
            [&](std::size_t, std::size_t loss) { return std::cmp_not_equal(loss, without); }))
      continue;
    finding.ranks = {without};
    finding.text = fmt::format(
        "What the loss of rank {} contributes is missing from every gradient: its cotangent was "
        "dropped or detached before a sum.",
        without);
    return finding;
  }
  return std::nullopt;
}

}  // namespace distgrad
