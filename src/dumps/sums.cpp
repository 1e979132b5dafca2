#include "dumps/sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/ranks_text.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

using Group = std::vector<std::size_t>;  // of holdings

class SumSearch {
 public:
  SumSearch(const Measured& m, const std::vector<Mistake>& mistakes, const FactorNames& names)
      : m_(m), mistakes_(mistakes), names_(names) {}

  std::optional<MissingSum> result() const {
    std::vector<const AxisGroups*> axes;
    for (const AxisGroups& axis : m_.parameter.axes)
      if (is_possible(axis)) axes.push_back(&axis);
    for (const bool mean : {false, true})
      if (auto found = over_axes(axes, mean)) return found;
    for (const bool mean : {false, true})
      if (auto found = over_any_sets(mean)) return found;
    // If each rank holds a multiple of the reference, any sum of them is one.
    const bool unknown = std::any_of(mistakes_.begin(), mistakes_.end(), [](const Mistake& m) {
      return m.kind == Mistake::Kind::kUnknown;
    });
    if (!unknown) return std::nullopt;
    for (const AxisGroups* axis : axes)
      if (auto found = multiple_over(*axis)) return found;
    return std::nullopt;
  }

 private:
  // --- What may be summed ---

  // Returns true if all hold copies of one piece that the reference has.
  bool hold_one_piece(const Group& group) const {
    return !m_.parameter.by_rank && group.size() > 1 &&
           std::all_of(group.begin(), group.end(), [&](std::size_t h) {
             return m_.holding(h).box == m_.holding(group[0]).box && !m_.holding(h).ranks.empty();
           });
  }
  bool is_right(std::size_t h) const { return mistakes_[h].kind == Mistake::Kind::kNone; }
  bool are_right(const Group& group) const {
    return std::all_of(group.begin(), group.end(), [&](std::size_t h) { return is_right(h); });
  }

  // Returns true if the holding is right by itself, and no further off than rounding is beside the
  // errors to be explained: in a short dtype a share may be within the tolerance, too.
  bool is_whole(std::size_t h) const {
    double most = 0;
    for (const Differences& d : m_.differences) most = std::max(most, d.error_squares);
    return is_right(h) && 16 * m_.differences[h].error_squares <= most;
  }

  // Returns true if these may be shares of a sum: a multiple of the gradient is also the sum of
  // holdings that have all of it, and of any copies.
  bool are_shares(const Group& group) const {
    return std::none_of(group.begin(), group.end(), [&](std::size_t h) { return is_whole(h); }) &&
           !std::all_of(group.begin(), group.end(),
                        [&](std::size_t h) { return m_.are_copies(group[0], h); });
  }

  // Returns true if the axis may be summed over. If a group's ranks are all right, or the reference
  // is zero, nothing needs a sum, and ranks in no group must be right.
  bool is_possible(const AxisGroups& axis) const {
    std::vector<bool> in_group(m_.differences.size());
    for (const Group& group : axis.groups) {
      if (!hold_one_piece(group)) return false;
      for (const std::size_t h : group) in_group[h] = true;
      if (are_right(group) && !m_.is_zero_piece(group[0])) return false;
    }
    for (std::size_t h = 0; h < in_group.size(); ++h)
      if (!in_group[h] && !is_right(h)) return false;
    return !axis.groups.empty();
  }

  // --- Sums ---

  Stream sum_of(const Group& group) const {
    Stream sum;
    for (const std::size_t h : group) {
      if (!m_.holding(h).observed) continue;
      const Stream& s = *m_.holding(h).observed;
      sum.factor = s.factor;
      sum.terms.insert(sum.terms.end(), s.terms.begin(), s.terms.end());
    }
    return sum;
  }

  bool sums_to(const Group& group, double factor, bool known = true) const {
    const Stream sum = sum_of(group);
    double error_squares = 0;
    for (const std::size_t h : group)
      error_squares = std::max(error_squares, m_.differences[h].error_squares);
    return sum.terms.size() > 1 && m_.explains(sum, group[0], factor, error_squares, known);
  }

  // Returns true if, in each group with something wrong, the sum is `factor` times the reference.
  bool fits(const AxisGroups& axis, double factor, bool known = true) const {
    return std::all_of(axis.groups.begin(), axis.groups.end(), [&](const Group& group) {
      return are_right(group) ||
             ((factor == 1 || are_shares(group)) && sums_to(group, factor, known));
    });
  }

  std::optional<MissingSum> over_axes(const std::vector<const AxisGroups*>& axes, bool mean) const {
    std::vector<const AxisGroups*> fitting;
    for (const AxisGroups* axis : axes)
      if (fits(*axis, mean ? axis->size : 1)) fitting.push_back(axis);
    if (fitting.empty()) return std::nullopt;
    MissingSum found = made(fitting[0]->groups, mean ? fitting[0]->size : 1, mean);
    std::vector<std::string> names, places;
    for (const AxisGroups* axis : fitting) {
      names.push_back(axis->name);
      places.push_back(place_of(*axis));
    }
    found.axis = fmt::format("{}", fmt::join(names, " or "));
    found.over = fmt::format("{}", fmt::join(places, " or "));
    return found;
  }

  std::optional<MissingSum> multiple_over(const AxisGroups& axis) const {
    const auto wrong = std::find_if(axis.groups.begin(), axis.groups.end(),
                                    [&](const Group& group) { return !are_right(group); });
    if (wrong == axis.groups.end()) return std::nullopt;
    const Group& first = *wrong;
    const Stream sum = sum_of(first);
    if (sum.terms.size() < 2) return std::nullopt;
    const Differences d = measure(sum, m_.holding(first[0]).expected, m_.bound);
    if (d.expected_squares <= 0 || !std::isfinite(d.product) || d.product == 0) return std::nullopt;
    const double ratio = d.product / d.expected_squares;
    NamedFactor factor = names_.name(ratio, m_.factor_precision());
    if (!factor.known || !fits(axis, factor.value)) {
      constexpr std::int64_t kTelling = 8;  // elements; fewer are a multiple of anything by chance
      const auto shown = names_.shown(ratio, m_.factor_precision());
      factor = shown ? *shown : FactorNames::unnamed(ratio);
      if ((!shown && m_.holding(first[0]).size() < kTelling) || !fits(axis, factor.value, false))
        return std::nullopt;
    }
    MissingSum found = made(axis.groups, factor.value, false);
    found.factor = factor;
    found.axis = axis.name;
    found.over = place_of(axis);
    return found;
  }

  // Finds, without a mesh, the smallest sets of ranks whose gradients add up to the reference:
  // among those that are not right by themselves, or among all where others are zero beside them.
  std::optional<MissingSum> over_any_sets(bool mean) const {
    constexpr std::size_t kMost = 10;
    Group all(m_.differences.size());
    for (std::size_t h = 0; h < all.size(); ++h) all[h] = h;
    if (all.size() < 3 || all.size() > kMost || !hold_one_piece(all) || m_.is_zero_piece(0))
      return std::nullopt;
    unsigned wrong = 0;
    for (const std::size_t h : all) wrong |= is_whole(h) ? 0 : 1u << h;
    std::vector<Group> groups = sets_of(wrong, mean);
    if (groups.empty() && !mean) groups = sets_of((1u << all.size()) - 1, mean);
    if (groups.empty()) return std::nullopt;
    MissingSum found = made(groups, mean ? static_cast<double>(groups[0].size()) : 1, mean);
    found.axis = "the ranks";
    found.over = groups_text(groups);
    return found;
  }

  // All of `left`; empty where some are in none.
  std::vector<Group> sets_of(unsigned left, bool mean) const {
    std::vector<Group> groups;
    while (left != 0) {
      const unsigned found = subset_with(left, mean);
      if (found == 0) return {};
      groups.push_back(members(found));
      left &= ~found;
    }
    return groups;
  }

  // Of the ranks `left` the smallest set that holds the first of them and adds up.
  unsigned subset_with(unsigned left, bool mean) const {
    std::vector<unsigned> subsets;
    for (unsigned s = left; s != 0; s = (s - 1) & left)
      if ((s & left & -left) != 0 && __builtin_popcount(s) > 1) subsets.push_back(s);
    std::sort(subsets.begin(), subsets.end(), [](unsigned a, unsigned b) {
      return std::pair(__builtin_popcount(a), a) < std::pair(__builtin_popcount(b), b);
    });
    for (const unsigned subset : subsets) {
      const Group group = members(subset);
      if (sums_to(group, mean ? static_cast<double>(group.size()) : 1)) return subset;
    }
    return 0;
  }

  static Group members(unsigned set) {
    Group group;
    for (std::size_t h = 0; set >> h != 0; ++h)
      if ((set >> h & 1) != 0) group.push_back(h);
    return group;
  }

  // --- What is said ---

  MissingSum made(const std::vector<Group>& groups, double factor, bool mean) const {
    MissingSum sum;
    sum.factor = {factor, true, false, false, "", ""};
    sum.is_mean = mean;
    std::vector<bool> is_summed(m_.differences.size());
    for (const Group& group : groups)
      for (const std::size_t h : group) is_summed[h] = true;
    for (std::size_t h = 0; h < is_summed.size(); ++h) {
      std::vector<int>& ranks = is_summed[h] ? sum.ranks : sum.right;
      ranks.insert(ranks.end(), m_.holding(h).ranks.begin(), m_.holding(h).ranks.end());
    }
    sum.own_slices = std::all_of(groups.begin(), groups.end(), [&](const Group& group) {
      std::vector<const Stream*> streams;
      for (const std::size_t h : group)
        if (m_.holding(h).observed) streams.push_back(&*m_.holding(h).observed);
      return m_.is_zero_piece(group[0]) || are_disjoint(streams);
    });
    return sum;
  }

  std::string place_of(const AxisGroups& axis) const {
    const std::string ranks = groups_text(axis.groups);
    return axis.kind == AxisGroups::Kind::kAll ? ranks : fmt::format("{} ({})", axis.name, ranks);
  }

  std::string groups_text(const std::vector<Group>& groups) const {
    std::vector<std::string> parts;
    for (const Group& group : groups) {
      if (parts.size() == 4) {
        parts.push_back("...");
        break;
      }
      std::vector<int> ranks;
      for (const std::size_t h : group)
        ranks.insert(ranks.end(), m_.holding(h).ranks.begin(), m_.holding(h).ranks.end());
      std::sort(ranks.begin(), ranks.end());
      parts.push_back(ranks_text(ranks));
    }
    return fmt::format("{}", fmt::join(parts, "; "));
  }

  const Measured& m_;
  const std::vector<Mistake>& mistakes_;
  const FactorNames& names_;
};

}  // namespace

std::string MissingSum::text() const {
  std::string text = factor.amount.empty()
                         ? fmt::format("needs {} over {}", is_mean ? "the average" : "a sum", over)
                         : fmt::format("the sum over {} is {}", over, factor.of("the reference"));
  if (own_slices) text = "has only each rank's own slice, and zeros elsewhere: " + text;
  return right.empty() ? text : text + ", right on " + ranks_text(right);
}

std::optional<MissingSum> missing_sum(const Measured& m, const std::vector<Mistake>& mistakes,
                                      const FactorNames& names) {
  return SumSearch(m, mistakes, names).result();
}

}  // namespace distgrad::dumps
