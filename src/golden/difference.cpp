#include "golden/difference.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "judge/closeness.h"
#include "judge/objective_truths.h"
#include "model/element_index.h"

namespace distgrad::golden {
namespace {

// Returns whether a stored bound is sound for `now` and not absurdly wide. Bounds depend on the
// operators that torch makes of a backward, so another version's may be larger; the larger one
// serves both.
bool bound_holds(double stored, double now) {
  constexpr double kSpared =
      0.71;  // this share of a rounded_up() bound is still no less than the bound
  if (now == 0 || !std::isfinite(now)) return within(stored, now, 0);
  return stored >= kSpared * now && !is_too_wide(stored, now);
}

// Compares one case and writes what is to be kept into `now_`.
class CaseKeeper {
 public:
  CaseKeeper(const CaseRecord& stored, CaseRecord& now, Differences& differences)
      : stored_(stored), now_(now), differences_(differences), where_(case_text(now)) {}

  void keep() {
    keep_losses();
    if (stored_.why != now_.why) {
      note(now_.why.empty()      ? "has gradients now"
           : stored_.why.empty() ? "has no gradients any more: " + now_.why
                                 : "has no gradients for another reason: " + now_.why);
      return;
    }
    for (GradientRecord& gradient : now_.gradients) keep_gradient(gradient);
    for (const GradientRecord& gradient : stored_.gradients)
      if (!record_named(now_.gradients, gradient.input))
        note(gradient.input + " has no gradient any more");
  }

 private:
  static const GradientRecord* record_named(const std::vector<GradientRecord>& all,
                                            const std::string& input) {
    for (const GradientRecord& g : all)
      if (g.input == input) return &g;
    return nullptr;
  }

  void note(const std::string& text) { differences_.notes.push_back(where_ + ": " + text); }

  // Keeps the stored value and the stored bound, each only where it still holds.
  bool keep_value(double stored, double stored_bound, double& now, double& now_bound) {
    const double slack = slack_of(now_bound, now_.dtype);
    if (bound_holds(stored_bound, now_bound))
      now_bound = stored_bound;
    else
      ++changed_bounds_;
    if (!within(stored, now, slack)) return false;
    now = stored;
    return true;
  }

  void report_bounds(const std::string& tensor) {
    if (changed_bounds_ > 0)
      note(fmt::format("{} bound{} of {} no longer hold{}", changed_bounds_,
                       changed_bounds_ == 1 ? "" : "s", tensor, changed_bounds_ == 1 ? "s" : ""));
    changed_bounds_ = 0;
  }

  void keep_losses() {
    if (stored_.losses.size() != now_.losses.size()) return note("has losses of other ranks");
    for (std::size_t r = 0; r < now_.losses.size(); ++r) {
      const double now = now_.losses[r];
      if (!keep_value(stored_.losses[r], stored_.loss_bounds[r], now_.losses[r],
                      now_.loss_bounds[r]))
        differences_.values.push_back(
            {where_, "loss", "", static_cast<int>(r), {}, stored_.losses[r], now});
    }
    report_bounds("the losses");
  }

  void keep_gradient(GradientRecord& now) {
    const GradientRecord* stored = record_named(stored_.gradients, now.input);
    if (!stored) return note(now.input + " is not in the golden file");
    if (stored->layout != now.layout)
      return note(
          fmt::format("{} has the layout {}, no longer {}", now.input, now.layout, stored->layout));
    if (stored->summary.has_value() != now.summary.has_value() ||
        stored->parts.size() != now.parts.size())
      return note(now.input + " has another size now");
    if (now.summary) return keep_summary(*stored->summary, *now.summary, now.input);
    for (std::size_t p = 0; p < now.parts.size(); ++p)
      keep_part(stored->parts[p], stored->bounds[p], now, p);
    report_bounds(now.input);
  }

  void keep_part(const Array& stored, const Array& stored_bounds, GradientRecord& now,
                 std::size_t p) {
    const Array& part = now.parts[p];
    const std::optional<int> rank =
        now.layout == "local" ? std::optional(static_cast<int>(p)) : std::nullopt;
    if (stored.shape() != part.shape()) return note(now.input + " has another shape now");
    std::vector<double> values(part.values().begin(), part.values().end());
    std::vector<double> bounds(now.bounds[p].values().begin(), now.bounds[p].values().end());
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!keep_value(stored.values()[i], stored_bounds.values()[i], values[i], bounds[i]))
        differences_.values.push_back({where_, now.input, "", rank, index_of(part.shape(), i),
                                       stored.values()[i], values[i]});
    now.bounds[p] = Array(part.shape(), std::move(bounds));
    now.parts[p] = Array(part.shape(), std::move(values));
  }

  // Keeps the stored summary whole or not at all, as its figures belong together.
  void keep_summary(const TensorSummary& stored, TensorSummary& now, const std::string& input) {
    if (stored.shapes != now.shapes || stored.first.size() != now.first.size())
      return note(input + " has another shape now");
    const std::size_t before = differences_.values.size();
    const double slack = slack_of(now.bound, now_.dtype);
    double elements = 0;
    for (const Shape& shape : now.shapes) elements += static_cast<double>(element_count(shape));
    // Norms add up n elements, so they carry their own rounding and the elements' errors.
    const double own = slack == 0 ? 0 : elements * 0x1p-53;
    const auto check = [&](std::string what, double s, double n, double bound) {
      if (!within(s, n, bound))
        differences_.values.push_back({where_, input, std::move(what), std::nullopt, {}, s, n});
    };
    for (std::size_t i = 0; i < now.first.size(); ++i)
      check(fmt::format("element {}", i), stored.first[i], now.first[i], slack);
    check("max", stored.max, now.max, slack);
    check("l1", stored.l1, now.l1, elements * slack + own * now.l1);
    check("l2", stored.l2, now.l2, std::sqrt(elements) * slack + own * now.l2);
    if (stored.sha256 != now.sha256 && differences_.values.size() == before)
      note(input + ": the SHA-256 of the elements differs");
    else if (!bound_holds(stored.bound, now.bound))
      note("the bound of " + input + " no longer holds");
    else if (differences_.values.size() == before)
      now = stored;
  }

  const CaseRecord& stored_;
  CaseRecord& now_;
  Differences& differences_;
  std::string where_;
  int changed_bounds_ = 0;
};

const CaseRecord* like(const std::vector<CaseRecord>& cases, const CaseRecord& wanted) {
  for (const CaseRecord& c : cases)
    if (same_case(c, wanted)) return &c;
  return nullptr;
}

// Returns how many float64 values lie between 0 and |x|; both zeros count as one.
std::uint64_t distance_from_zero(double x) { return std::bit_cast<std::uint64_t>(std::abs(x)); }

}  // namespace

std::optional<std::uint64_t> ulps_between(double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b)) return std::nullopt;
  const std::uint64_t from_zero_a = distance_from_zero(a), from_zero_b = distance_from_zero(b);
  if (std::signbit(a) != std::signbit(b)) return from_zero_a + from_zero_b;
  return from_zero_a > from_zero_b ? from_zero_a - from_zero_b : from_zero_b - from_zero_a;
}

bool is_too_wide(double stored, double now) {
  constexpr double kWidest = 4;
  return stored > kWidest * now;
}

double slack_of(double bound, DType dtype) {
  return bound == 0 ? 0 : bound_in_float64(bound, dtype);
}

GoldenFile kept(const GoldenFile& stored, const GoldenFile& now, Differences& differences) {
  GoldenFile result = now;
  if (stored.scenario_sha256 != now.scenario_sha256)
    differences.notes.push_back("the scenario has changed since: its SHA-256 no longer fits");
  for (CaseRecord& c : result.cases) {
    if (const CaseRecord* before = like(stored.cases, c))
      CaseKeeper(*before, c, differences).keep();
    else
      differences.notes.push_back(case_text(c) + " is not in the golden file");
  }
  for (const CaseRecord& c : stored.cases)
    if (!like(result.cases, c))
      differences.notes.push_back(case_text(c) + " is not in the scenario");
  if (stored.scenario_sha256 == now.scenario_sha256 && !differences.empty())
    differences.notes.insert(
        differences.notes.begin(),
        "the scenario is the same as when the file was written: distgrad or torch gives something "
        "else for it, or the file was edited");
  return result;
}

}  // namespace distgrad::golden
