#include "dumps/second_look.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace distgrad::dumps {
namespace {

constexpr std::int64_t kTelling = 8;  // elements; fewer are a multiple of anything by chance
constexpr std::size_t kFewest = 2;    // parameters that have the common factor

bool is_measured_multiple(const ParameterResult& r) {
  return r.explanation == Explanation::kScaled && r.factor && !r.factor_known && r.ranks.empty() &&
         element_count(r.shape) >= kTelling;
}

bool is_explained(const ParameterResult& r) {
  constexpr Explanation kOpen[] = {Explanation::kUnexplained, Explanation::kUnsynchronised,
                                   Explanation::kClose, Explanation::kUnclear};
  return std::ranges::count(kOpen, r.explanation) == 0;
}

}  // namespace

SecondLook second_look(const std::vector<ParameterResult>& results) {
  SecondLook look;
  std::size_t most = 0, wrong = 0;
  for (const ParameterResult& r : results) {
    wrong += r.is_right() ? 0 : 1;
    if (r.explanation == Explanation::kSummedParts) look.sums.emplace_back(r.axis, *r.factor);
    if (!is_measured_multiple(r)) continue;
    const auto has = [&](double factor) { return has_factor(r, factor); };
    if (std::none_of(look.shown.begin(), look.shown.end(), has)) look.shown.push_back(*r.factor);
  }
  for (const double factor : look.shown) {
    const auto count = static_cast<std::size_t>(
        std::count_if(results.begin(), results.end(), [&](const ParameterResult& r) {
          return is_measured_multiple(r) && has_factor(r, factor);
        }));
    if (count <= most || count < kFewest || 2 * count < wrong || factor <= 0) continue;
    most = count;
    look.common = factor;
  }
  return look;
}

bool may_say_more(const ParameterResult& r, const SecondLook& look) {
  if (r.is_right() || (look.shown.empty() && look.sums.empty())) return false;
  const bool has_the_common = r.explanation == Explanation::kScaled && r.factor &&
                              r.ranks.empty() && has_factor(r, look.common);
  return !has_the_common && (!is_explained(r) || (r.factor && !r.factor_known));
}

bool says_more(const ParameterResult& first, const ParameterResult& second) {
  if (second.is_right() || !is_explained(second)) return false;
  // Too many numbers are some small ratio times another one.
  const bool is_named =
      !second.factor ||
      (second.explanation == Explanation::kScaled ? second.factor_is_size : second.factor_known);
  return is_named && (!is_explained(first) || (first.factor && !first.factor_known));
}

ParameterResult beside_common(ParameterResult second, const ParameterResult& first, double common) {
  // The numbers describe what was observed.
  second.bitwise = first.bitwise;
  second.max_abs_error = first.max_abs_error;
  second.relative_error = first.relative_error;
  second.largest_observed = first.largest_observed;
  second.worst = first.worst;
  if (second.factor) *second.factor *= common;
  second.headline +=
      fmt::format(", beside the {:.3g} that other gradients are multiplied by", common);
  return second;
}

}  // namespace distgrad::dumps
