#include "diagnose/leftovers.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "diagnose/phrases.h"
#include "gradients/closeness.h"

namespace distgrad {
namespace {

constexpr std::size_t kLargestGroup = 8;
// Of fewer elements some sum may be right by chance.
constexpr int kLeastElements = 2;
constexpr double kCoarsest = 1e-6;

using Shares = std::vector<std::vector<GradientByRank>>;  // by loss, input, rank

// Of one list of a group and one input: whether what is held off root are partial sums of what the
// root adds up.
class PartialSums {
 public:
  PartialSums(const Evidence& evidence, const Shares& shares, const std::vector<int>& list,
              std::size_t root, std::size_t input)
      : observed_(evidence.comparison().gradients[input].observed_by_rank),
        truth_(evidence.comparison().gradients[input].truth_by_rank),
        list_(list),
        root_(root) {
    for (const int rank : list)
      terms_.push_back(shares[static_cast<std::size_t>(rank)][input][at(list[root])]);
    slack_ = 4 * evidence.largest_bound(input) +
             16 * unit_roundoff(evidence.program().dtype) * largest_term();
  }

  // Elements off root that are not 0; nothing where one of them is no such sum.
  std::optional<int> explained() const {
    int elements = 0;
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const auto& held = observed_[at(list_[i])];
      if (!held || !has_right_form(*held, i)) return std::nullopt;
      if (i == root_) continue;
      for (std::int64_t e = 0; e < held->size(); ++e) {
        if ((*held)[e] == 0) continue;
        if (!is_partial_sum((*held)[e], e)) return std::nullopt;
        ++elements;
      }
    }
    return elements;
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  double largest_term() const {
    double largest = 0;
    for (const auto& term : terms_)
      if (term) largest = std::max(largest, largest_magnitude(term->values()));
    return largest * static_cast<double>(terms_.size());
  }

  // The root's is the truth, the others' truth is zero.
  bool has_right_form(const Array& held, std::size_t i) const {
    const auto& truth = truth_[at(list_[i])];
    if (!truth || held.shape() != truth->shape()) return false;
    if (i != root_) return largest_magnitude(truth->values()) == 0 && held.shape() == shape();
    return difference(held.values(), truth->values(), [&](std::size_t) { return slack_; }).equal;
  }

  Shape shape() const { return terms_[0] ? terms_[0]->shape() : Shape{-1}; }

  bool is_partial_sum(double value, std::int64_t element) const {
    const std::size_t n = terms_.size();
    for (std::size_t first = 0; first < n; ++first) {
      double sum = 0;
      for (std::size_t length = 0; length < n; ++length) {
        const auto& term = terms_[(first + length) % n];
        sum += term ? (*term)[element] : 0;
        if (within(value, sum, slack_)) return true;
      }
    }
    return false;
  }

  const GradientByRank& observed_;
  const std::vector<std::optional<Array>>& truth_;
  const std::vector<int>& list_;
  std::size_t root_;
  std::vector<std::optional<Array>> terms_;  // by rank of the group, what the root sums
  double slack_ = 0;
};

std::vector<std::vector<int>> lists_of(const Program& program, const CollectiveCall& call) {
  if (const Group* group = call.group.empty() ? nullptr : program.group_named(call.group))
    return group->partition;
  std::vector<int> world(static_cast<std::size_t>(program.world_size));
  std::iota(world.begin(), world.end(), 0);
  return {world};
}

bool is_left_over(const Evidence& evidence, const Shares& shares, const CollectiveCall& call) {
  int elements = 0;
  for (const std::size_t input : evidence.differing_inputs()) {
    if (!evidence.inputs()[input]->is_local()) return false;
    for (const std::vector<int>& list : lists_of(evidence.program(), call)) {
      if (list.size() < 2 || list.size() > kLargestGroup) return false;
      const auto explained =
          PartialSums(evidence, shares, list, static_cast<std::size_t>(call.root), input)
              .explained();
      if (!explained) return false;
      elements += *explained;
    }
  }
  return elements >= kLeastElements;
}

}  // namespace

std::optional<Finding> leftovers_finding(const Evidence& evidence, const Replayer& replayer) {
  if (unit_roundoff(evidence.program().dtype) > kCoarsest) return std::nullopt;
  std::optional<Shares> shares;
  for (const Step* step : evidence.collectives()) {
    const CollectiveCall& call = *step->collective();
    if (call.kind != CollectiveKind::kBroadcast) continue;
    if (!shares) shares = replayer.shares();
    if (shares->size() != static_cast<std::size_t>(evidence.program().world_size))
      return std::nullopt;
    if (!is_left_over(evidence, *shares, call)) continue;
    return Finding{
        "stale-or-aliased",
        "broadcast",
        step->name,
        evidence.differing_ranks(),
        {},
        how_they_differ(evidence, std::nullopt) +
            ": the backward of broadcast left off root the partial sums that a reduction to root "
            "leaves in its buffer; the gradient there is 0. Return zeros on the ranks that are not "
            "root: what they passed in was not used."};
  }
  return std::nullopt;
}

}  // namespace distgrad
