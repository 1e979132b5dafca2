#include "dumps/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "dumps/measured.h"
#include "dumps/rearranged.h"
#include "dumps/sums.h"
#include "model/element_index.h"
#include "model/ranks_text.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

// Returns true for two measured factors that differ no more than rounding makes them.
bool are_same(double a, double b, double rtol) {
  return std::abs(a / b - 1) <= std::clamp(rtol / 4, 1e-3, unit_roundoff(DType::kBFloat16) * 2);
}

std::string on_ranks(const std::vector<int>& ranks) {
  return ranks.empty() ? "" : " on " + ranks_text(ranks);
}

FactorNames factor_names(const Parameter& p, const ExplainContext& context) {
  using Kind = NamedCount::Kind;
  std::vector<NamedCount> counts;
  for (const AxisGroups& axis : p.axes) {
    if (axis.size == context.world_size) continue;
    if (axis.kind == AxisGroups::Kind::kAxis)
      counts.push_back({axis.name, axis.size, Kind::kAxis});
    else if (axis.kind == AxisGroups::Kind::kProcessGroups)
      counts.push_back({"ranks of a process group", axis.size, Kind::kOther});
    else if (!p.by_rank)
      counts.push_back({"ranks that hold it", axis.size, Kind::kOther});
  }
  counts.push_back({"ranks", context.world_size, Kind::kOther});
  counts.insert(counts.end(), context.counts.begin(), context.counts.end());
  return FactorNames(std::move(counts), is_narrow(context.tolerance.computed_in(p.dtype)),
                     context.shown);
}

class Explaining {
 public:
  Explaining(const Parameter& parameter, const ExplainContext& context)
      : p_(parameter), context_(context), names_(factor_names(parameter, context)) {}

  ParameterResult result() {
    r_.name = p_.name;
    r_.shape = p_.shape;
    r_.dtype = p_.dtype;
    r_.arrangement = p_.arrangement;
    r_.placements = p_.placements;
    judge();
    if (!r_.is_right() && r_.finding.empty()) r_.finding = row_of(r_.explanation).finding;
    return r_;
  }

 private:
  using Kind = Mistake::Kind;

  void judge() {
    if (!p_.unclear.empty()) return say(Explanation::kUnclear, "cannot be judged: " + p_.unclear);
    if (!p_.wrong_shapes.empty()) return say_shape();
    if (p_.missing_reference) return judge_extra();
    if (p_.holdings.empty()) return say(Explanation::kMissing, "no gradient on any rank");
    const Measured m = measured(p_, context_.tolerance);
    note_errors(m);
    if (p_.uncovered > 0)
      return say(Explanation::kUncovered, fmt::format("{} of its {} elements are on no rank",
                                                      p_.uncovered, element_count(p_.shape)));
    std::vector<Mistake> mistakes;
    for (std::size_t h = 0; h < m.differences.size(); ++h)
      mistakes.push_back(mistake_of(m, h, names_));
    const auto all_are = [&](Kind kind) {
      return std::ranges::count(mistakes, kind, &Mistake::kind) == std::ssize(mistakes);
    };
    if (all_are(Kind::kNone)) return judge_right(m);
    if (is_near_but_for_few_numbers(m, mistakes)) return say_close();
    if (lacks_shares(mistakes) || is_uniform(m, mistakes)) return;
    if (const auto sum = missing_sum(m, mistakes, names_)) return say_sum(*sum, mistakes);
    if (is_rearranged(m, mistakes)) return;
    if (are_other_slices(mistakes)) return say(Explanation::kOtherSlice, pieces_text(mistakes));
    if (!all_are(Kind::kUnknown)) return say_some_ranks(m, mistakes);
    judge_unexplained(m);
  }

  void say(Explanation explanation, std::string headline) {
    r_.explanation = explanation;
    r_.headline = std::move(headline);
    const auto is_blamed = [&](int rank) { return std::ranges::count(r_.ranks, rank) > 0; };
    if (r_.worst && !r_.ranks.empty() && std::ranges::none_of(r_.worst->ranks, is_blamed))
      r_.worst.reset();  // A right rank's rounding is not what is wrong.
  }

  // --- Without a comparison ---

  void say_shape() {
    std::vector<std::string> parts;
    for (const auto& [ranks, shape] : p_.wrong_shapes)
      parts.push_back(fmt::format("[{}]{}", fmt::join(shape, ", "), on_ranks(ranks)));
    r_.kind = "has another shape than the reference";
    say(Explanation::kShape, fmt::format("has the shape {}, the reference [{}]",
                                         fmt::join(parts, " and "), fmt::join(p_.shape, ", ")));
  }

  void judge_extra() {
    for (const Holding& h : p_.holdings)
      r_.largest_observed = std::max(r_.largest_observed, largest(*h.observed));
    r_.bitwise = r_.largest_observed == 0;
    if (!r_.bitwise) say(Explanation::kExtra, "has a gradient, the reference has none");
  }

  // --- Errors ---

  void note_errors(const Measured& m) {
    r_.rtol = m.bound.rtol;
    r_.bitwise = true;
    double worst = -1;
    for (std::size_t h = 0; h < m.differences.size(); ++h) {
      const Differences& d = m.differences[h];
      r_.largest_expected = std::max(r_.largest_expected, d.max_expected);
      r_.largest_observed = std::max(r_.largest_observed, d.max_observed);
      r_.bitwise = r_.bitwise && d.unknown == 0;
      if (d.max_error == 0 && d.strange == 0) continue;
      const double error = d.strange > 0 ? HUGE_VAL : d.max_error;
      r_.bitwise = false;
      r_.max_abs_error = std::max(r_.max_abs_error, error);
      // The norm of a piece that is only rounding says nothing.
      if (!m.is_zero_piece(h) || !within(d, m.bound))
        r_.relative_error = std::max(r_.relative_error, d.relative_error());
      if (error <= worst) continue;
      worst = error;
      r_.worst = WorstElement{m.holding(h).ranks, index_in_whole(m.holding(h).box, d.worst),
                              d.worst_observed, d.worst_expected};
    }
  }

  std::vector<std::int64_t> index_in_whole(const Box& box, std::int64_t element) const {
    std::vector<std::int64_t> index = index_of(box.extent, element);
    for (std::size_t dim = 0; dim < index.size(); ++dim) index[dim] += box.offset[dim];
    const bool flattened = index.size() != p_.shape.size() && index.size() == 1;
    return flattened ? index_of(p_.shape, index[0]) : index;
  }

  // --- All ranks alike ---

  void judge_right(const Measured& m) {
    if (std::ranges::any_of(m.differences, &Differences::unknown))
      return say(Explanation::kUnclear,
                 "cannot be judged: the reference itself is NaN or infinite in places where the "
                 "run differs; the other elements are right");
    std::vector<int> without;
    for (const Holding& h : p_.holdings)
      if (!h.observed && h.size() > 0)
        without.insert(without.end(), h.ranks.begin(), h.ranks.end());
    if (!without.empty())
      r_.notes.push_back(
          fmt::format("no gradient{}, where the reference is zero", on_ranks(without)));
    if (std::ranges::any_of(m.differences, &Differences::equally_strange))
      r_.notes.push_back("NaN or infinite at the same elements of both runs");
    Bound tight = m.bound;
    tight.model_floor = 0;
    for (const Differences& d : m.differences)
      if (!within(d, tight))
        return say(Explanation::kNoise,
                   "differs no further than rounding beside the model's largest gradient");
  }

  // A piece of few numbers is rounded as the whole tensor is, however small its numbers are.
  bool is_near_but_for_few_numbers(const Measured& m, const std::vector<Mistake>& mistakes) const {
    if (!m.is_near_as_a_whole) return false;
    for (std::size_t h = 0; h < mistakes.size(); ++h)
      if (mistakes[h].kind != Kind::kNone && !m.has_few_numbers(h)) return false;
    return true;
  }

  bool lacks_shares(const std::vector<Mistake>& mistakes) {
    for (std::size_t h = 0; h < mistakes.size(); ++h)
      if (mistakes[h].kind == Kind::kMissing && p_.holdings[h].observed)
        r_.ranks.insert(r_.ranks.end(), p_.holdings[h].lacking.begin(),
                        p_.holdings[h].lacking.end());
    if (r_.ranks.empty()) return false;
    std::sort(r_.ranks.begin(), r_.ranks.end());
    say(Explanation::kMissing,
        fmt::format("no gradient{}, whose share of the sum is missing", on_ranks(r_.ranks)));
    return true;
  }

  // Returns true if all make the same mistake.
  bool is_uniform(const Measured& m, const std::vector<Mistake>& mistakes) {
    static constexpr std::pair<Kind, Explanation> kSame[] = {
        {Kind::kMissing, Explanation::kMissing}, {Kind::kNotFinite, Explanation::kNotFinite},
        {Kind::kZero, Explanation::kZero},       {Kind::kTransposed, Explanation::kTransposed},
        {Kind::kScaled, Explanation::kScaled},   {Kind::kOtherSlice, Explanation::kOtherSlice}};
    std::vector<std::size_t> telling;
    for (std::size_t h = 0; h < mistakes.size(); ++h)
      if (m.holding(h).size() > 0 && !(mistakes[h].kind == Kind::kNone && m.is_zero_piece(h)))
        telling.push_back(h);
    if (telling.empty()) return false;
    // Prefers a factor that has a name, since a short dtype may show it on some ranks only.
    const auto named = std::find_if(telling.begin(), telling.end(), [&](std::size_t h) {
      return mistakes[h].kind == Kind::kScaled && mistakes[h].factor.known;
    });
    const Mistake* first = &mistakes[named == telling.end() ? telling[0] : *named];
    for (const std::size_t h : telling)
      if (!same_mistake(*first, mistakes[h]) && !is_same_in_short(m, *first, mistakes[h], h))
        return false;
    const auto same = std::find_if(std::begin(kSame), std::end(kSame),
                                   [&](const auto& s) { return s.first == first->kind; });
    if (same == std::end(kSame)) return false;
    const std::string where = p_.holdings.size() > 1 ? " on every rank" : "";
    std::string headline = first->text + where;
    if (first->kind == Kind::kMissing) headline = "no gradient" + where;
    if (first->kind == Kind::kOtherSlice) headline = pieces_text(mistakes);
    if (first->kind == Kind::kScaled) note_factor(first->factor);
    say(same->second, std::move(headline));
    return true;
  }

  bool same_mistake(const Mistake& a, const Mistake& b) const {
    if (a.kind != b.kind) return false;
    return a.kind != Kind::kScaled ||
           (a.factor.known == b.factor.known && are_same(a.factor.value, b.factor.value, r_.rtol));
  }

  // Returns true for factors that differ only by a short dtype's rounding.
  static bool is_same_in_short(const Measured& m, const Mistake& first, const Mistake& other,
                               std::size_t h) {
    return m.forgives_near && first.kind == Kind::kScaled && other.kind == Kind::kScaled &&
           m.explains(*m.holding(h).observed, h, first.factor.value, m.differences[h].error_squares,
                      true);
  }

  void note_factor(const NamedFactor& factor) {
    r_.factor = factor.value;
    r_.factor_known = factor.known;
    r_.factor_is_size = factor.is_size;
    r_.factor_is_loss_scale = factor.is_loss_scale;
  }

  std::string pieces_text(const std::vector<Mistake>& mistakes) const {
    std::vector<std::string> parts;
    for (std::size_t h = 0; h < mistakes.size() && parts.size() < 4; ++h)
      if (mistakes[h].kind == Kind::kOtherSlice)
        parts.push_back(fmt::format("{} {}", ranks_text(p_.holdings[h].ranks), mistakes[h].text));
    const std::optional<OtherCut> cut = other_cut(p_, mistakes);
    const std::string as_if =
        cut ? fmt::format(", as if cut over {} and not over {}", cut->taken, cut->meant) : "";
    return fmt::format("ranks hold other ranks' pieces{}: {}{}", as_if, fmt::join(parts, "; "),
                       lost_pieces_text(mistakes));
  }

  // Says nothing if a rank was not compared, as that rank may hold them.
  std::string lost_pieces_text(const std::vector<Mistake>& mistakes) const {
    std::vector<int> ranks;
    int compared = 0;
    for (const Holding& h : p_.holdings) {
      compared += static_cast<int>(h.ranks.size());
      bool is_held = h.size() == 0;
      for (std::size_t other = 0; other < mistakes.size(); ++other) {
        const bool is_right = mistakes[other].kind == Kind::kNone;
        const std::size_t held = is_right ? other : mistakes[other].piece_of;
        is_held = is_held || p_.holdings[held].box == h.box;
      }
      if (!is_held) ranks.insert(ranks.end(), h.ranks.begin(), h.ranks.end());
    }
    if (ranks.empty() || compared < context_.world_size) return {};
    return "; no rank holds that of " + ranks_text(ranks);
  }

  // Returns true if some have another's slice and the others are right. Gradients of one rank alone
  // are no pieces.
  bool are_other_slices(const std::vector<Mistake>& mistakes) const {
    return !p_.by_rank && std::all_of(mistakes.begin(), mistakes.end(), [](const Mistake& mistake) {
      return mistake.kind == Kind::kNone || mistake.kind == Kind::kOtherSlice;
    });
  }

  void say_sum(const MissingSum& sum, const std::vector<Mistake>& mistakes) {
    r_.axis = sum.axis;
    note_factor(sum.factor);
    if (sum.own_slices) r_.finding = "own-slice";
    if (!sum.right.empty()) r_.ranks = sum.ranks;
    // Multiples of the reference may add up to it by chance, so it is also said what they are.
    const bool are_multiples = std::ranges::count(mistakes, Kind::kUnknown, &Mistake::kind) == 0;
    say(Explanation::kSum, are_multiples ? sum.text() + ": " + by_rank_text(mistakes) : sum.text());
  }

  bool is_rearranged(const Measured& m, const std::vector<Mistake>& mistakes) {
    const auto unknown = std::ranges::count(mistakes, Kind::kUnknown, &Mistake::kind);
    const auto right = std::ranges::count(mistakes, Kind::kNone, &Mistake::kind);
    if (unknown == 0 || unknown + right != std::ssize(mistakes) || m.is_near_everywhere())
      return false;
    if (right == 0)
      if (const auto sum = summed_parts(m, names_, context_.sums)) {
        r_.axis = sum->axis;
        note_factor(sum->factor);
        say(Explanation::kSummedParts, "each rank holds " + sum->text);
        return true;
      }
    const std::optional<Reordered> found = reordered(m);
    if (!found) return false;
    r_.kind = found->kind;
    say(Explanation::kOtherSlice, found->text);
    return true;
  }

  // --- Not all alike ---

  void say_some_ranks(const Measured& m, const std::vector<Mistake>& mistakes) {
    std::vector<int> right;
    bool measured_factors = false;
    for (std::size_t h = 0; h < mistakes.size(); ++h) {
      const std::vector<int>& ranks = p_.holdings[h].ranks;
      const bool is_right = mistakes[h].kind == Kind::kNone;
      std::vector<int>& list = is_right ? right : r_.ranks;
      list.insert(list.end(), ranks.begin(), ranks.end());
      measured_factors =
          measured_factors || (mistakes[h].kind == Kind::kScaled && !mistakes[h].factor.known);
    }
    std::sort(r_.ranks.begin(), r_.ranks.end());
    r_.finding = finding_of_some(mistakes);
    std::string text = by_rank_text(mistakes);
    if (right.empty()) {
      if (measured_factors) r_.kind = "a multiple of the reference that differs by rank";
      return say(Explanation::kUnsynchronised, std::move(text));
    }
    std::ranges::sort(right);
    if (measured_factors)
      r_.kind = fmt::format("wrong{}, right{}", on_ranks(r_.ranks), on_ranks(right));
    const auto is_other = [](Kind kind) { return kind != Kind::kNone && kind != Kind::kUnknown; };
    if (std::ranges::none_of(mistakes, is_other, &Mistake::kind) && m.is_near_everywhere())
      return say_close();
    say(Explanation::kSomeRanks, std::move(text));
  }

  std::string by_rank_text(const std::vector<Mistake>& mistakes) const {
    constexpr std::size_t kMost = 6;
    std::map<std::string, std::vector<int>> wrong;  // by the words for them
    std::vector<int> right;
    for (std::size_t h = 0; h < mistakes.size(); ++h) {
      const std::vector<int>& ranks = p_.holdings[h].ranks;
      const bool is_unknown = mistakes[h].kind == Kind::kUnknown;
      std::vector<int>& list =
          mistakes[h].kind == Kind::kNone ? right : wrong[is_unknown ? "wrong" : mistakes[h].text];
      list.insert(list.end(), ranks.begin(), ranks.end());
    }
    std::vector<std::string> parts;
    for (auto& [text, ranks] : wrong) {
      std::sort(ranks.begin(), ranks.end());
      if (parts.size() < kMost) parts.push_back(text + on_ranks(ranks));
    }
    if (wrong.size() > kMost) parts.push_back("...");
    std::sort(right.begin(), right.end());
    if (!right.empty()) parts.push_back("right" + on_ranks(right));
    return fmt::format("{}", fmt::join(parts, ", "));
  }

  // Copies that differ are unsynchronised; pieces without a copy are judged by themselves.
  FindingName finding_of_some(const std::vector<Mistake>& mistakes) const {
    const auto any = [&](Kind kind) {
      return std::ranges::count(mistakes, kind, &Mistake::kind) > 0;
    };
    if (any(Kind::kMissing)) return "no-gradient";
    for (std::size_t a = 0; a < mistakes.size(); ++a)
      for (std::size_t b = 0; b < a; ++b)
        if (p_.holdings[a].box == p_.holdings[b].box && !p_.by_rank &&
            (mistakes[a].kind != mistakes[b].kind || mistakes[a].text != mistakes[b].text))
          return "unsynchronised";
    if (any(Kind::kUnknown) || any(Kind::kNotFinite)) return "unexplained";
    if (any(Kind::kScaled)) return "scaled";
    return any(Kind::kZero) ? FindingName("no-gradient") : FindingName("wrong-slice");
  }

  // --- Nothing fits ---

  bool copies_differ(const Measured& m) const {
    if (p_.by_rank) return false;
    for (std::size_t h = 1; h < p_.holdings.size(); ++h)
      if (p_.holdings[0].box == p_.holdings[h].box && !m.are_copies(0, h)) return true;
    return false;
  }

  void say_close() {
    r_.ranks.clear();
    r_.finding = {};
    r_.kind.clear();
    r_.is_forgiven = context_.tolerance.forgives_near(p_.dtype);
    if (context_.tolerance.is_near_by_rounding(p_.dtype))
      return say(
          Explanation::kClose,
          "differs by more than the tolerance, by no more than rounding in a short dtype would");
    r_.finding = "unexplained";
    say(Explanation::kClose, "differs by more than the tolerance, by a few percent at most");
  }

  void judge_unexplained(const Measured& m) {
    if (m.is_near_everywhere()) return say_close();
    if (copies_differ(m))
      return say(Explanation::kUnsynchronised,
                 "wrong on every rank, and ranks that should hold copies differ");
    const std::string which = p_.holdings.size() > 1 ? "differs on every rank" : "differs";
    if (const std::string rows = rows_text(m); !rows.empty())
      return say(Explanation::kUnexplained, which + rows);
    say(Explanation::kUnexplained, which + ", and nothing simple explains it");
  }

  // Returns " in row 3 of 32 alone, where it is 0" if most rows are right, and the same ones are
  // wrong wherever the whole is held; else "".
  static std::string rows_text(const Measured& m) {
    const Shape& shape = m.parameter.shape;
    std::optional<WrongRows> found;
    for (std::size_t h = 0; h < m.differences.size(); ++h) {
      if (shape.size() < 2 || m.holding(h).size() != element_count(shape)) return "";
      const WrongRows here = wrong_rows(m, h);
      if (found && (found->rows != here.rows || found->are_zero != here.are_zero)) return "";
      found = here;
    }
    if (!found || 2 * std::ssize(found->rows) > shape[0]) return "";
    constexpr std::size_t kMostShown = 8;
    const std::vector<std::int64_t>& rows = found->rows;
    const std::size_t shown = std::min(rows.size(), kMostShown);
    return fmt::format(
        " in row{} {}{} of {} alone{}", rows.size() > 1 ? "s" : "",
        fmt::join(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
        shown < rows.size() ? fmt::format(" and {} more", rows.size() - shown) : "", shape[0],
        found->are_zero ? ", where it is 0" : "");
  }

  const Parameter& p_;
  const ExplainContext& context_;
  FactorNames names_;
  ParameterResult r_;
};

constexpr std::array<ExplanationRow, 18> kExplanations = {{
    {Explanation::kRight, "right", {}, ""},
    {Explanation::kNoise, "noise", {}, ""},
    {Explanation::kClose, "close", "precision",
     "A shorter dtype may round so far. `distgrad compare --dtype` allows for that; rtol, "
     "there and of check_step, allows more."},
    {Explanation::kScaled, "scaled", "scaled", ""},
    {Explanation::kSum, "sum", "missing-reduction", ""},
    {Explanation::kOtherSlice, "other-slice", "wrong-slice", ""},
    {Explanation::kSummedParts, "summed-parts", "wrong-group", ""},
    {Explanation::kTransposed, "transposed", "unexplained", ""},
    {Explanation::kZero, "zero", "no-gradient", ""},
    {Explanation::kMissing, "missing", "no-gradient", ""},
    {Explanation::kExtra, "extra", "unknown", ""},
    {Explanation::kNotFinite, "not-finite", "unexplained", ""},
    {Explanation::kSomeRanks, "some-ranks", "unsynchronised", ""},
    {Explanation::kUnsynchronised, "unsynchronised", "unsynchronised",
     "Ranks that should hold the same do not."},
    {Explanation::kShape, "shape", "shape", ""},
    {Explanation::kUncovered, "uncovered", "shape", ""},
    {Explanation::kUnclear, "unclear", {}, ""},
    {Explanation::kUnexplained, "unexplained", "unexplained", ""},
}};

}  // namespace

const ExplanationRow& row_of(Explanation explanation) {
  return kExplanations[static_cast<std::size_t>(explanation)];
}

bool has_factor(const ParameterResult& r, double factor) {
  return are_same(*r.factor, factor, r.rtol);
}

ParameterResult explain(const Parameter& parameter, const ExplainContext& context) {
  if (context.common == 1) return Explaining(parameter, context).result();
  Parameter divided = parameter;
  for (Holding& holding : divided.holdings)
    if (holding.observed) holding.observed->factor /= context.common;
  return Explaining(divided, context).result();
}

}  // namespace distgrad::dumps
