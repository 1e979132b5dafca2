#include "dumps/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "dumps/factors.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

// What one holding is, by itself.
struct Class {
  enum class Kind {
    kRight,
    kMissing,
    kNotFinite,
    kZero,
    kScaled,
    kOtherSlice,
    kTransposed,
    kWrong
  };
  Kind kind = Kind::kWrong;
  NamedFactor factor;  // of kScaled
  std::string text;    // after "on rank 1": "1/2 of the reference"

  // What makes two holdings' mistakes the same one.
  std::string key() const { return fmt::format("{} {}", static_cast<int>(kind), text); }
};

std::string on_ranks(const std::vector<int>& ranks) {
  return ranks.empty() ? "" : " on " + ranks_text(ranks);
}

class Explaining {
 public:
  Explaining(const Parameter& parameter, const ExplainContext& context)
      : p_(parameter), context_(context) {}

  ParameterResult result() {
    r_.name = p_.name;
    r_.shape = p_.shape;
    r_.dtype = p_.dtype;
    r_.arrangement = p_.arrangement;
    r_.placements = p_.placements;
    if (!p_.unclear.empty()) return said(Explanation::kUnclear, "cannot be judged: " + p_.unclear);
    if (!p_.wrong_shapes.empty()) return said(Explanation::kShape, shape_text());
    if (p_.missing_reference) return extra();
    measure_all();
    if (all_of(Class::Kind::kRight)) return r_;
    classify();
    if (uniform()) return r_;
    if (sum_over_axis() || sum_over_subset()) return r_;
    if (!all_wrong()) return on_some_ranks();
    return unexplained();
  }

 private:
  ParameterResult said(Explanation explanation, std::string headline) {
    r_.explanation = explanation;
    r_.headline = std::move(headline);
    return r_;
  }

  // --- Without a comparison ---

  std::string shape_text() const {
    std::vector<std::string> parts;
    for (const auto& [ranks, shape] : p_.wrong_shapes)
      parts.push_back(fmt::format("[{}]{}", fmt::join(shape, ", "), on_ranks(ranks)));
    return fmt::format("has the shape {}, the reference [{}]", fmt::join(parts, " and "),
                       fmt::join(p_.shape, ", "));
  }

  ParameterResult extra() {
    for (const Holding& h : p_.holdings)
      r_.largest_observed = std::max(r_.largest_observed, largest(*h.observed));
    r_.bitwise = r_.largest_observed == 0;
    if (r_.bitwise) return r_;
    return said(Explanation::kExtra, "has a gradient, the reference has none");
  }

  // --- Measuring ---

  void measure_all() {
    double whole = 0;
    for (const Holding& h : p_.holdings)
      whole = std::max(whole, h.observed ? 0 : largest(h.expected));
    const Bound loose = bound_for(p_, context_.tolerance, 0);
    for (const Holding& h : p_.holdings) {
      differences_.push_back(h.observed ? measure(*h.observed, h.expected, loose) : Differences{});
      if (!h.observed) differences_.back().max_expected = largest(h.expected);
      whole = std::max(whole, differences_.back().max_expected);
    }
    bound_ = bound_for(p_, context_.tolerance, whole);
    r_.rtol = bound_.rtol;
    r_.bitwise = true;
    double worst = -1;
    for (std::size_t i = 0; i < p_.holdings.size(); ++i) {
      Class& c = classes_.emplace_back();
      note(i, worst);
      if (!p_.holdings[i].observed) {
        const bool needs_none = differences_[i].max_expected == 0;
        c = {needs_none ? Class::Kind::kRight : Class::Kind::kMissing, {}, "missing"};
      } else if (within(differences_[i], bound_)) {
        c.kind = Class::Kind::kRight;
      }
    }
  }

  void note(std::size_t i, double& worst) {
    const Differences& d = differences_[i];
    r_.largest_expected = std::max(r_.largest_expected, d.max_expected);
    r_.largest_observed = std::max(r_.largest_observed, d.max_observed);
    if (d.max_error == 0 && d.strange == 0) return;
    r_.bitwise = false;
    r_.max_abs_error = std::max(r_.max_abs_error, d.strange > 0 ? HUGE_VAL : d.max_error);
    r_.relative_error = std::max(r_.relative_error, d.relative_error());
    const double rank = d.strange > 0 ? HUGE_VAL : d.max_error;
    if (rank <= worst) return;
    worst = rank;
    const Holding& h = p_.holdings[i];
    std::vector<std::int64_t> index = index_of(h.box.extent, d.worst);
    for (std::size_t dim = 0; dim < index.size(); ++dim) index[dim] += h.box.offset[dim];
    if (index.size() != p_.shape.size() && index.size() == 1) index = index_of(p_.shape, index[0]);
    r_.worst = WorstElement{h.ranks, std::move(index), d.worst_observed, d.worst_expected};
  }

  bool all_of(Class::Kind kind) const {
    return std::all_of(classes_.begin(), classes_.end(),
                       [&](const Class& c) { return c.kind == kind; });
  }
  bool all_wrong() const {
    return std::all_of(classes_.begin(), classes_.end(),
                       [](const Class& c) { return c.kind == Class::Kind::kWrong; });
  }

  // --- Each holding by itself ---

  void classify() {
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      if (classes_[i].kind != Class::Kind::kWrong) continue;
      const Differences& d = differences_[i];
      if (d.strange > 0)
        classes_[i] = {
            Class::Kind::kNotFinite, {}, "NaN or infinite in places where the reference is not"};
      else if (d.max_observed == 0)
        classes_[i] = {Class::Kind::kZero, {}, "zero"};
      else if (!is_scaled(i) && !is_other_slice(i))
        is_transposed(i);
    }
  }

  bool is_scaled(std::size_t i) {
    const Differences& d = differences_[i];
    if (d.expected_squares <= 0 || !std::isfinite(d.product) || d.product == 0) return false;
    const double precision = std::clamp(4 * bound_.rtol, 1e-12, 0.02);
    const NamedFactor factor =
        name_factor(d.product / d.expected_squares, context_.world_size, p_.axes, precision);
    // Every number is some other number times a constant.
    if (!factor.known && p_.holdings[i].size() == 1) return false;
    if (factor.value == 1) return false;
    if (!agrees(*p_.holdings[i].observed, p_.holdings[i].expected, factor.value, bound_,
                d.max_expected))
      return false;
    classes_[i] = {Class::Kind::kScaled, factor, factor.text};
    return true;
  }

  bool is_other_slice(std::size_t i) {
    const Holding& h = p_.holdings[i];
    for (std::size_t s = 0; s < p_.holdings.size(); ++s) {
      const Holding& other = p_.holdings[s];
      if (s == i || other.box.extent != h.box.extent || (other.box == h.box && !p_.by_rank))
        continue;
      if (!agrees(*h.observed, other.expected, 1, bound_, differences_[s].max_expected)) continue;
      classes_[i] = {Class::Kind::kOtherSlice, {}, "the piece of " + ranks_text(other.ranks)};
      return true;
    }
    return false;
  }

  bool is_transposed(std::size_t i) {
    const Holding& h = p_.holdings[i];
    constexpr std::int64_t kMost = std::int64_t{1}
                                   << 27;  // elements; both sides are held in memory
    if (h.box.extent.size() != 2 || h.box.extent[0] != h.box.extent[1] || h.size() > kMost)
      return false;
    const std::int64_t n = h.box.extent[0];
    std::vector<double> o(static_cast<std::size_t>(n * n)), e(o.size());
    h.observed->read(0, n * n, o.data());
    h.expected.read(0, n * n, e.data());
    for (std::int64_t row = 0; row < n; ++row)
      for (std::int64_t column = 0; column < n; ++column)
        if (std::abs(o[row * n + column] - e[column * n + row]) >
            bound_.atol + bound_.floor + bound_.rtol * differences_[i].max_expected)
          return false;
    classes_[i] = {Class::Kind::kTransposed, {}, "the transpose of the reference"};
    return true;
  }

  // --- All holdings together ---

  // All make the same mistake.
  bool uniform() {
    using Kind = Class::Kind;
    static constexpr std::pair<Kind, Explanation> kSame[] = {
        {Kind::kMissing, Explanation::kMissing}, {Kind::kNotFinite, Explanation::kNotFinite},
        {Kind::kZero, Explanation::kZero},       {Kind::kTransposed, Explanation::kTransposed},
        {Kind::kScaled, Explanation::kScaled},   {Kind::kOtherSlice, Explanation::kOtherSlice}};
    const Class* first = nullptr;
    bool other_texts = false;
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      const Class& c = classes_[i];
      if (p_.holdings[i].size() == 0 || nothing_to_scale(i)) continue;
      if (first == nullptr) first = &c;
      if (c.kind != first->kind) return false;
      if (c.kind == Kind::kScaled && c.factor.known != first->factor.known) return false;
      if (c.kind == Kind::kScaled &&
          std::abs(c.factor.value / first->factor.value - 1) > kSameFactor)
        return false;
      other_texts = other_texts || c.text != first->text;
    }
    if (first == nullptr) return false;
    const auto same = std::find_if(std::begin(kSame), std::end(kSame),
                                   [&](const auto& s) { return s.first == first->kind; });
    if (same == std::end(kSame)) return false;
    const std::string where = p_.holdings.size() > 1 ? " on every rank" : "";
    std::string headline = first->text + where;
    if (first->kind == Kind::kMissing) headline = "no gradient" + where;
    if (first->kind == Kind::kOtherSlice) headline = pieces_text();
    if (first->kind == Kind::kScaled) {
      r_.factor = first->factor.value;
      r_.factor_known = first->factor.known;
    }
    said(same->second, std::move(headline));
    return true;
  }

  // A piece where the reference is zero is right whatever the factor.
  bool nothing_to_scale(std::size_t i) const {
    return classes_[i].kind == Class::Kind::kRight && differences_[i].max_expected <= bound_.floor;
  }

  std::string pieces_text() const {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < classes_.size() && parts.size() < 4; ++i)
      if (classes_[i].kind == Class::Kind::kOtherSlice)
        parts.push_back(fmt::format("{} {}", ranks_text(p_.holdings[i].ranks), classes_[i].text));
    return fmt::format("ranks hold other ranks' pieces: {}", fmt::join(parts, "; "));
  }

  Stream sum_of(const std::vector<std::size_t>& group) const {
    Stream sum;
    for (const std::size_t h : group) {
      if (!p_.holdings[h].observed) continue;
      const Stream& s = *p_.holdings[h].observed;
      sum.factor = s.factor;
      sum.terms.insert(sum.terms.end(), s.terms.begin(), s.terms.end());
    }
    return sum;
  }

  // Whether all hold copies of one piece, which the reference has a value for.
  bool hold_one_piece(const std::vector<std::size_t>& group) const {
    return !p_.by_rank && group.size() > 1 &&
           std::all_of(group.begin(), group.end(), [&](std::size_t h) {
             return p_.holdings[h].box == p_.holdings[group[0]].box &&
                    !p_.holdings[h].ranks.empty();
           });
  }

  bool sums_to(const std::vector<std::size_t>& group, double factor) const {
    const Stream sum = sum_of(group);
    if (sum.terms.size() < 2) return false;
    const Holding& h = p_.holdings[group[0]];
    return agrees(sum, h.expected, factor, bound_, differences_[group[0]].max_expected);
  }

  bool is_zero_piece(const std::vector<std::size_t>& group) const {
    return differences_[group[0]].max_expected <= bound_.floor;
  }

  std::string groups_text(const std::vector<std::vector<std::size_t>>& groups) const {
    std::vector<std::string> parts;
    for (const auto& group : groups) {
      std::vector<int> ranks;
      for (const std::size_t h : group)
        ranks.insert(ranks.end(), p_.holdings[h].ranks.begin(), p_.holdings[h].ranks.end());
      if (group.size() < 2) continue;
      if (parts.size() == 4) {
        parts.push_back("...");
        break;
      }
      std::sort(ranks.begin(), ranks.end());
      parts.push_back(ranks_text(ranks));
    }
    return fmt::format("{}", fmt::join(parts, "; "));
  }

  // The sum over each group is the same known multiple of the reference.
  bool sum_over_axis() {
    for (const AxisGroups& axis : p_.axes) {
      const bool fits = std::all_of(axis.groups.begin(), axis.groups.end(),
                                    [&](const auto& group) { return hold_one_piece(group); });
      if (!fits || axis.groups.empty()) continue;
      // Where a group's ranks are all right, or the reference is zero, there is nothing to be
      // summed.
      const bool wrong_everywhere =
          std::all_of(axis.groups.begin(), axis.groups.end(), [&](const auto& group) {
            return is_zero_piece(group) ||
                   std::any_of(group.begin(), group.end(), [&](std::size_t h) {
                     return classes_[h].kind != Class::Kind::kRight;
                   });
          });
      if (!wrong_everywhere) continue;
      for (const double factor : possible_sums(axis)) {
        const bool all = std::all_of(axis.groups.begin(), axis.groups.end(),
                                     [&](const auto& group) { return sums_to(group, factor); });
        if (all) return say_sum(axis.name, axis.size, factor, axis.groups);
      }
    }
    return false;
  }

  std::vector<double> possible_sums(const AxisGroups& axis) const {
    std::vector<double> factors = {1, static_cast<double>(axis.size), 1.0 / axis.size};
    const double n = context_.world_size;
    if (context_.world_size != axis.size) factors.insert(factors.end(), {n, 1 / n, axis.size / n});
    return factors;
  }

  bool say_sum(const std::string& axis, int size, double factor,
               const std::vector<std::vector<std::size_t>>& groups) {
    const bool mean = factor == size;
    const std::string where = axis == "the ranks"
                                  ? groups_text(groups)
                                  : fmt::format("{} ({})", axis, groups_text(groups));
    std::string headline = fmt::format("needs {} over {}", mean ? "the average" : "a sum", where);
    if (!mean && factor != 1)
      headline += fmt::format(", which is then {} {} the reference", ratio_text(factor),
                              factor < 1 ? "of" : "times");
    r_.axis = axis;
    r_.factor = factor;
    r_.factor_known = true;
    said(Explanation::kSum, std::move(headline));
    return true;
  }

  // Without a mesh: the smallest sets of ranks whose gradients add up to the reference.
  bool sum_over_subset() {
    constexpr std::size_t kMost = 10;
    const std::size_t n = p_.holdings.size();
    std::vector<std::size_t> all(n);
    for (std::size_t i = 0; i < n; ++i) all[i] = i;
    if (n < 3 || n > kMost || !hold_one_piece(all) || is_zero_piece(all)) return false;
    for (const bool mean : {false, true}) {
      std::vector<std::vector<std::size_t>> groups;
      unsigned left = (1u << n) - 1;
      while (left != 0) {
        const unsigned found = subset_with(left, mean);
        if (found == 0) break;
        auto& group = groups.emplace_back();
        for (std::size_t i = 0; i < n; ++i)
          if ((found >> i & 1) != 0) group.push_back(i);
        left &= ~found;
      }
      if (left == 0 && !groups.empty())
        return say_sum("the ranks", static_cast<int>(groups[0].size()),
                       mean ? static_cast<double>(groups[0].size()) : 1, groups);
    }
    return false;
  }

  // Of the ranks `left` the smallest set that holds the first of them and adds up.
  unsigned subset_with(unsigned left, bool mean) const {
    const unsigned first = left & -left;
    for (const unsigned subset : subsets_by_size_of(left)) {
      if ((subset & first) == 0 || __builtin_popcount(subset) < 2) continue;
      std::vector<std::size_t> group;
      for (std::size_t i = 0; i < p_.holdings.size(); ++i)
        if ((subset >> i & 1) != 0) group.push_back(i);
      if (sums_to(group, mean ? static_cast<double>(group.size()) : 1)) return subset;
    }
    return 0;
  }

  static std::vector<unsigned> subsets_by_size_of(unsigned set) {
    std::vector<unsigned> subsets;
    for (unsigned s = set; s != 0; s = (s - 1) & set) subsets.push_back(s);
    std::sort(subsets.begin(), subsets.end(), [](unsigned a, unsigned b) {
      return std::pair(__builtin_popcount(a), a) < std::pair(__builtin_popcount(b), b);
    });
    return subsets;
  }

  // --- Not all alike ---

  ParameterResult on_some_ranks() {
    std::map<std::string, std::pair<std::string, std::vector<int>>> mistakes;
    std::vector<int> right;
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      const std::vector<int>& ranks = p_.holdings[i].ranks;
      if (classes_[i].kind == Class::Kind::kRight) {
        right.insert(right.end(), ranks.begin(), ranks.end());
        continue;
      }
      const std::string text = classes_[i].kind == Class::Kind::kWrong ? "wrong" : classes_[i].text;
      auto& [shown, at] = mistakes[classes_[i].key()];
      shown = text;
      at.insert(at.end(), ranks.begin(), ranks.end());
      r_.ranks.insert(r_.ranks.end(), ranks.begin(), ranks.end());
    }
    std::vector<std::string> parts;
    for (auto& [key, mistake] : mistakes) {
      std::sort(mistake.second.begin(), mistake.second.end());
      parts.push_back(mistake.first + on_ranks(mistake.second));
    }
    std::sort(r_.ranks.begin(), r_.ranks.end());
    if (right.empty())
      return said(Explanation::kUnsynchronised, fmt::format("{}", fmt::join(parts, ", ")));
    std::sort(right.begin(), right.end());
    return said(Explanation::kSomeRanks,
                fmt::format("{}, right{}", fmt::join(parts, ", "), on_ranks(right)));
  }

  // --- Nothing fits ---

  bool copies_differ() const {
    if (p_.by_rank) return false;
    for (std::size_t i = 1; i < p_.holdings.size(); ++i) {
      const Holding &a = p_.holdings[0], &b = p_.holdings[i];
      if (a.box != b.box) continue;
      if (!agrees(*b.observed, *a.observed, 1, bound_, differences_[0].max_observed)) return true;
    }
    return false;
  }

  ParameterResult unexplained() {
    if (r_.relative_error <= default_rtol(DType::kBFloat16))
      return said(
          Explanation::kClose,
          "differs by more than the tolerance, by no more than rounding in a short dtype would");
    if (copies_differ())
      return said(Explanation::kUnsynchronised,
                  "wrong on every rank, and ranks that should hold copies differ");
    return said(Explanation::kUnexplained,
                p_.holdings.size() > 1 ? "differs on every rank, and nothing simple explains it"
                                       : "differs, and nothing simple explains it");
  }

  static constexpr double kSameFactor = 1e-3;
  const Parameter& p_;
  const ExplainContext& context_;
  Bound bound_;
  std::vector<Differences> differences_;
  std::vector<Class> classes_;
  ParameterResult r_;
};

constexpr std::array<ExplanationRow, 16> kRows = {{
    {Explanation::kRight, "right", ""},
    {Explanation::kNoise, "noise", ""},
    {Explanation::kClose, "close",
     "A run that computed in a shorter dtype (autocast, TF32, a compressed all-reduce) leaves such "
     "differences: --dtype "
     "bfloat16, or --rtol, says that it did."},
    {Explanation::kScaled, "scaled", ""},
    {Explanation::kSum, "sum",
     "Each rank holds only its own share: the gradient was not reduced over these ranks."},
    {Explanation::kOtherSlice, "other-slice",
     "The pieces are right and in the wrong order: look at how slices are assigned to ranks."},
    {Explanation::kTransposed, "transposed", "The tensor is stored the other way round."},
    {Explanation::kZero, "zero",
     "The loss does not reach it with any weight, or the buffer was cleared before it was saved."},
    {Explanation::kMissing, "missing",
     "The loss does not reach the parameter (detached, under no_grad, a collective without a "
     "backward), it is frozen, or it "
     "was saved after zero_grad."},
    {Explanation::kExtra, "extra",
     "It is frozen or unused in the reference, or another parameter of that name."},
    {Explanation::kNotFinite, "not-finite",
     "An overflow (float16 with a large loss scale?), or a division by zero."},
    {Explanation::kSomeRanks, "some-ranks", ""},
    {Explanation::kUnsynchronised, "unsynchronised",
     "The gradients were not, or not fully, reduced over the ranks."},
    {Explanation::kShape, "shape",
     "Another model, another way of cutting it, or a tensor that is stored transposed."},
    {Explanation::kUnclear, "unclear", ""},
    {Explanation::kUnexplained, "unexplained", ""},
}};

}  // namespace

const ExplanationRow& row_of(Explanation explanation) {
  return kRows[static_cast<std::size_t>(explanation)];
}

ParameterResult explain(const Parameter& parameter, const ExplainContext& context) {
  return Explaining(parameter, context).result();
}

}  // namespace distgrad::dumps
