#include "dumps/measured.h"

#include <algorithm>
#include <cmath>

#include "model/ranks_text.h"
#include "report/words.h"

namespace distgrad::dumps {
namespace {

constexpr std::string_view kReference = "the reference";

// Returns true if a factor near 1 may come from rounding in a short dtype. Rounding moves elements
// apart, but elements that share a factor differ only by the rounding of storing them.
bool may_be_rounding(const Measured& m, std::size_t h, double factor) {
  if (!m.forgives_near || std::abs(factor - 1) > m.near_bound.rtol) return false;
  const Differences& d = m.differences[h];
  const double left = d.error_squares - (factor - 1) * (factor - 1) * d.expected_squares;
  const double stored = m.bound.rtol / 8;
  return m.has_few_numbers(h) || left > stored * stored * d.expected_squares;
}

std::optional<Mistake> scaled(const Measured& m, std::size_t h, const FactorNames& names) {
  const Differences& d = m.differences[h];
  if (d.expected_squares <= 0 || !std::isfinite(d.product) || d.product == 0) return std::nullopt;
  const double measured = d.product / d.expected_squares;
  const auto fits = [&](const NamedFactor& factor) {
    return m.explains(*m.holding(h).observed, h, factor.value, d.error_squares, factor.known);
  };
  const NamedFactor named = names.name(measured, m.factor_precision());
  if (named.known && fits(named))
    return Mistake{Mistake::Kind::kScaled, named, named.of(kReference)};
  if (const auto shown = names.shown(measured, m.factor_precision()); shown && fits(*shown))
    return Mistake{Mistake::Kind::kScaled, *shown, shown->of(kReference)};
  // A single number is always another number times a constant.
  const NamedFactor other = FactorNames::unnamed(measured);
  if (m.holding(h).size() == 1 || may_be_rounding(m, h, measured) || !fits(other))
    return std::nullopt;
  return Mistake{Mistake::Kind::kScaled, other, other.of(kReference)};
}

std::optional<Mistake> other_slice(const Measured& m, std::size_t h) {
  const Holding& own = m.holding(h);
  for (std::size_t other = 0; other < m.differences.size(); ++other) {
    const Holding& theirs = m.holding(other);
    if (other == h || theirs.box.extent != own.box.extent) continue;
    if (theirs.box == own.box && !m.parameter.by_rank) continue;
    if (m.explains(*own.observed, other, 1, m.differences[h].error_squares, true))
      return Mistake{
          Mistake::Kind::kOtherSlice, {}, "the piece of " + ranks_text(theirs.ranks), other};
  }
  return std::nullopt;
}

std::optional<Mistake> transposed(const Measured& m, std::size_t h) {
  constexpr std::int64_t kMost = std::int64_t{1} << 27;  // elements; both sides are held in memory
  const Holding& own = m.holding(h);
  if (own.box.extent.size() != 2 || own.box.extent[0] != own.box.extent[1] || own.size() > kMost)
    return std::nullopt;
  const std::int64_t n = own.box.extent[0];
  std::vector<double> o(static_cast<std::size_t>(n * n)), e(o.size());
  own.observed->read(0, n * n, o.data());
  own.expected.read(0, n * n, e.data());
  const double limit = m.bound.of_element(m.differences[h].max_expected);
  double error_squares = 0;
  for (std::int64_t row = 0; row < n; ++row)
    for (std::int64_t column = 0; column < n; ++column) {
      const double error = std::abs(o[row * n + column] - e[column * n + row]);
      if (!(error <= limit)) return std::nullopt;  // also a NaN
      error_squares += error * error;
    }
  if (error_squares * 16 > m.differences[h].error_squares) return std::nullopt;
  return Mistake{Mistake::Kind::kTransposed, {}, "the transpose of the reference"};
}

// Measures all pieces together, with the worst of copies. Returns nothing for a parameter that is
// not cut.
std::optional<Differences> as_a_whole(const Measured& m) {
  std::vector<std::size_t> pieces;
  for (std::size_t h = 0; h < m.differences.size(); ++h) {
    if (!m.holding(h).observed || m.parameter.by_rank) return std::nullopt;
    const auto copy = std::find_if(pieces.begin(), pieces.end(), [&](std::size_t other) {
      return m.holding(other).box == m.holding(h).box;
    });
    if (copy == pieces.end())
      pieces.push_back(h);
    else if (m.differences[h].error_squares > m.differences[*copy].error_squares)
      *copy = h;
  }
  if (pieces.size() < 2) return std::nullopt;
  Differences sum;
  for (const std::size_t h : pieces) {
    const Differences& d = m.differences[h];
    sum.size += d.size;
    sum.strange += d.strange;
    sum.max_error = std::max(sum.max_error, d.max_error);
    sum.max_expected = std::max(sum.max_expected, d.max_expected);
    sum.error_squares += d.error_squares;
    sum.expected_squares += d.expected_squares;
  }
  return sum;
}

}  // namespace

bool Measured::explains(const Stream& observed, std::size_t h, double factor, double error_squares,
                        bool known) const {
  // An explanation leaves little of a mistake, but as much of rounding as before.
  constexpr double kLeft = 1.0 / 16;  // of the squares
  return agrees(observed, holding(h).expected, factor, known && forgives_near ? near_bound : bound,
                differences[h].max_expected, kLeft * error_squares);
}

bool Measured::are_copies(std::size_t a, std::size_t b) const {
  const auto &x = holding(a).observed, &y = holding(b).observed;
  return x && y && holding(a).box == holding(b).box &&
         agrees(*y, *x, 1, bound, differences[a].max_observed, HUGE_VAL);
}

double Measured::factor_precision() const { return std::clamp(4 * bound.rtol, 1e-12, 0.03); }

bool Measured::is_near_everywhere() const {
  return std::all_of(differences.begin(), differences.end(),
                     [&](const Differences& d) { return within(d, near_bound); });
}

Measured measured(const Parameter& p, const Tolerance& tolerance) {
  Measured m{.parameter = p, .bound = {}, .near_bound = {}, .differences = {}};
  m.forgives_near = tolerance.forgives_near(p.dtype);
  const Bound loose = tolerance.bound(p.dtype, 0);
  double whole = 0;
  for (const Holding& h : p.holdings) {
    Differences d = measure(h.observed.value_or(h.expected), h.expected, loose);
    if (!h.observed) d = {.max_expected = d.max_expected, .unknown = d.equally_strange};
    whole = std::max(whole, d.max_expected);
    m.differences.push_back(d);
  }
  m.bound = tolerance.bound(p.dtype, whole);
  m.near_bound = tolerance.near_bound(p.dtype, whole);
  // What is zero on paper is rounding beside the model's largest gradient in either run.
  if (tolerance.model_largest > 0 && whole <= m.bound.model_floor)
    for (Bound* bound : {&m.bound, &m.near_bound})
      bound->model_floor *=
          std::max(1.0, tolerance.model_largest_observed / tolerance.model_largest);
  if (const auto together = as_a_whole(m); together && m.forgives_near) {
    m.is_right_as_a_whole = within(*together, m.bound);
    m.is_near_as_a_whole = within(*together, m.near_bound);
  }
  return m;
}

WrongRows wrong_rows(const Measured& m, std::size_t h) {
  const Holding& own = m.holding(h);
  const std::int64_t length = own.size() / std::max<std::int64_t>(own.box.extent[0], 1);
  const auto count = static_cast<std::size_t>(length);
  std::vector<double> seen(count), right(count);
  const double room = m.bound.of_element(m.differences[h].max_expected);
  WrongRows found;
  for (std::int64_t row = 0; row < own.box.extent[0]; ++row) {
    own.observed->read(row * length, length, seen.data());
    own.expected.read(row * length, length, right.data());
    const auto is_off = [&](double a, double b) {
      return std::isfinite(b) && !(std::abs(a - b) <= room);
    };
    bool is_wrong = false;
    for (std::size_t i = 0; i < count; ++i) is_wrong = is_wrong || is_off(seen[i], right[i]);
    if (!is_wrong) continue;
    found.rows.push_back(row);
    found.are_zero =
        found.are_zero && std::ranges::all_of(seen, [](double element) { return element == 0; });
  }
  return found;
}

Mistake mistake_of(const Measured& m, std::size_t h, const FactorNames& names) {
  const Differences& d = m.differences[h];
  const Holding& own = m.holding(h);
  if (d.max_expected != 0 && (!own.observed || !own.lacking.empty()))
    return {Mistake::Kind::kMissing, {}, "missing"};
  if (!own.observed || within(d, m.bound) || (m.is_right_as_a_whole && m.has_few_numbers(h)))
    return {Mistake::Kind::kNone, {}, ""};
  if (d.strange > 0)
    return {Mistake::Kind::kNotFinite, {}, "NaN or infinite in places where the reference is not"};
  if (d.max_observed == 0) return {Mistake::Kind::kZero, {}, "zero"};
  if (auto found = scaled(m, h, names)) return *found;
  if (auto found = other_slice(m, h)) return *found;
  if (auto found = transposed(m, h)) return *found;
  return {};
}

}  // namespace distgrad::dumps
