#include "dumps/differences.h"

#include <algorithm>
#include <cmath>

#include "model/distance.h"

namespace distgrad::dumps {
namespace {

// Counts elements; two blocks of float64 fit into a core's own cache.
constexpr std::int64_t kBlock = 8192;

// Makes room for the blocks in which the stream is read.
std::vector<double> block_of(const Stream& stream) {
  return std::vector<double>(static_cast<std::size_t>(std::min(kBlock, stream.size())));
}

// Returns false for numbers whose squares would vanish; then only the largest error decides.
bool squares_are_usable(double squares, double max_expected) {
  return std::isfinite(squares) && max_expected > 1e-140;
}

double reduced(Stream::Reduction reduction, double a, double b) {
  switch (reduction) {
    case Stream::Reduction::kSum:
      return a + b;
    case Stream::Reduction::kProduct:
      return a * b;
    case Stream::Reduction::kMax:
      return std::isnan(a) || std::isnan(b) ? std::nan("") : std::max(a, b);
    case Stream::Reduction::kMin:
      return std::isnan(a) || std::isnan(b) ? std::nan("") : std::min(a, b);
  }
  return a;
}

class Measurement {
 public:
  explicit Measurement(const Bound& bound) : bound_(bound) {}

  void add(const double* observed, const double* expected, std::int64_t begin, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const double o = observed[i], e = expected[i], error = std::abs(o - e);
      if (!std::isfinite(error)) {
        add_strange(o, e, begin + i);
        continue;
      }
      d_.error_squares += error * error;
      d_.expected_squares += e * e;
      d_.product += o * e;
      d_.max_expected = std::max(d_.max_expected, std::abs(e));
      d_.max_observed = std::max(d_.max_observed, std::abs(o));
      if (error > d_.max_error) {
        d_.max_error = error;
        if (d_.strange == 0) set_worst(o, e, begin + i);
      }
      if (bound_.elementwise && error > bound_.atol + bound_.rtol * std::abs(e)) ++d_.beyond;
    }
    d_.size += count;
  }

  Differences result() const { return d_; }

 private:
  void add_strange(double o, double e, std::int64_t at) {
    if (same_value(o, e))
      ++d_.equally_strange;
    else if (!std::isfinite(e))
      ++d_.unknown;
    else if (d_.strange++ == 0)
      set_worst(o, e, at);
  }
  void set_worst(double o, double e, std::int64_t at) {
    d_.worst = at;
    d_.worst_observed = o;
    d_.worst_expected = e;
  }

  const Bound& bound_;
  Differences d_;
};

}  // namespace

double unit_roundoff(DType dtype) { return std::ldexp(1.0, -traits(dtype).significand_bits); }

DType coarser(DType a, DType b) { return unit_roundoff(a) > unit_roundoff(b) ? a : b; }

bool is_narrow(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

double default_rtol(DType dtype) {
  // These are multiples of the unit roundoff: what another order of sums and another kernel leave
  // after a deep network. Mistakes of a distributed program exceed them by orders of magnitude,
  // except in the short dtypes, where sums are accumulated in float32 and only what is stored is
  // rounded.
  switch (dtype) {
    case DType::kFloat64:
      return 16384 * unit_roundoff(dtype);
    case DType::kFloat32:
      return 1024 * unit_roundoff(dtype);
    case DType::kFloat16:
      return 16 * unit_roundoff(dtype);
    case DType::kBFloat16:
      return 8 * unit_roundoff(dtype);
  }
  return 0;
}

namespace {

// Returns what is left of a gradient that is zero on paper, as a fraction of the model's largest.
double rounding_beside_largest(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 128 * unit_roundoff(dtype);
    case DType::kFloat32:
      return 16 * unit_roundoff(dtype);
    case DType::kFloat16:
    case DType::kBFloat16:
      return 4 * unit_roundoff(dtype);
  }
  return 0;
}

}  // namespace

DType Tolerance::computed_in(DType saved) const { return coarser(dtype.value_or(saved), saved); }

Bound Tolerance::bound(DType saved, double largest_of_whole) const {
  const DType computed = computed_in(saved);
  Bound bound;
  bound.elementwise = elementwise;
  bound.rtol = rtol.value_or(default_rtol(computed));
  bound.atol = atol.value_or(0);
  if (elementwise) return bound;
  if (!rtol) bound.floor = unit_roundoff(computed) * largest_of_whole;
  if (!atol) bound.model_floor = rounding_beside_largest(computed) * model_largest;
  return bound;
}

Bound Tolerance::near_bound(DType saved, double largest_of_whole) const {
  Bound near = bound(saved, largest_of_whole);
  near.elementwise = false;
  near.rtol = std::max(default_rtol(DType::kBFloat16), 4 * default_rtol(computed_in(saved)));
  return near;
}

bool Tolerance::forgives_near(DType saved) const {
  return is_narrow(computed_in(saved)) && !rtol && !atol && !elementwise;
}

bool Tolerance::is_near_by_rounding(DType saved) const {
  return saw_short_dtype || is_narrow(computed_in(saved));
}

double Bound::of_element(double max_expected) const {
  return atol + std::max(floor, model_floor) + rtol * max_expected;
}

double Bound::of_norm(double size, double expected_norm) const {
  // The floor is what the worst of thousands of elements may be off by. All together are off by far
  // less; right steps in bfloat16 stayed below a hundredth of it (tests/steps).
  constexpr double kRootMeanSquare = 1.0 / 16;
  return (atol + kRootMeanSquare * model_floor) * std::sqrt(size) + rtol * expected_norm;
}

void Stream::read(std::int64_t begin, std::int64_t count, double* out) const {
  terms.front().read(begin, count, out);
  double more[kBlock];
  for (std::size_t t = 1; t < terms.size(); ++t)
    for (std::int64_t done = 0; done < count; done += kBlock) {
      const std::int64_t n = std::min(kBlock, count - done);
      terms[t].read(begin + done, n, more);
      for (std::int64_t i = 0; i < n; ++i)
        out[done + i] = reduced(reduction, out[done + i], more[i]);
    }
  if (factor == 1) return;
  for (std::int64_t i = 0; i < count; ++i) out[i] *= factor;
}

double Differences::relative_error() const {
  if (strange > 0) return HUGE_VAL;
  if (error_squares == 0 && max_error == 0) return 0;
  if (max_expected == 0) return HUGE_VAL;
  if (squares_are_usable(error_squares + expected_squares, max_expected))
    return std::sqrt(error_squares / expected_squares);
  return max_error / max_expected;
}

Differences measure(const Stream& observed, const Stream& expected, const Bound& bound) {
  std::vector<double> o = block_of(observed), e = o;
  Measurement measurement(bound);
  for (std::int64_t begin = 0, size = observed.size(); begin < size; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, size - begin);
    observed.read(begin, n, o.data());
    expected.read(begin, n, e.data());
    measurement.add(o.data(), e.data(), begin, n);
  }
  return measurement.result();
}

bool within(const Differences& d, const Bound& bound) {
  if (d.strange > 0) return false;
  if (bound.elementwise) return d.beyond == 0;
  if (d.max_error > bound.of_element(d.max_expected)) return false;
  // A piece that is only rounding beside the rest of its tensor has no meaningful norm.
  if (!squares_are_usable(d.error_squares + d.expected_squares, d.max_expected) ||
      d.max_expected <= bound.floor)
    return true;
  return std::sqrt(d.error_squares) <=
         bound.of_norm(static_cast<double>(d.size), std::sqrt(d.expected_squares));
}

bool agrees(const Stream& observed, const Stream& expected, double factor, const Bound& unscaled,
            double max_expected, double most_squares) {
  const double scale = std::abs(factor);
  Bound bound = unscaled;
  bound.floor *= scale;
  bound.model_floor *= std::max(1.0, scale);
  const double limit = bound.of_element(scale * max_expected);
  const auto is_beyond = [&](double o, double e) {
    const double error = std::abs(o - e);
    if (!std::isfinite(error)) return !same_value(o, e);
    return error > (bound.elementwise ? bound.atol + bound.rtol * std::abs(e) : limit);
  };
  std::vector<double> o = block_of(observed), e = o;
  double error_squares = 0, expected_squares = 0;
  const std::int64_t size = observed.size();
  // The first blocks are small, since most hypotheses fail there.
  for (std::int64_t begin = 0, step = 64; begin < size;
       begin += step, step = std::min(kBlock, step * 4)) {
    step = std::min(step, size - begin);
    observed.read(begin, step, o.data());
    expected.read(begin, step, e.data());
    for (std::int64_t i = 0; i < step; ++i) {
      e[i] *= factor;
      if (is_beyond(o[i], e[i])) return false;
      if (!std::isfinite(o[i])) continue;
      error_squares += (o[i] - e[i]) * (o[i] - e[i]);
      expected_squares += e[i] * e[i];
    }
    if (error_squares > most_squares) return false;
  }
  if (bound.elementwise || max_expected <= unscaled.floor ||
      !squares_are_usable(expected_squares, scale * max_expected))
    return true;
  return std::sqrt(error_squares) <=
         bound.of_norm(static_cast<double>(size), std::sqrt(expected_squares));
}

double largest(const Stream& stream) { return measure(stream, stream, {}).max_expected; }

double sum_of_squares(const Stream& stream) {
  const Differences same = measure(stream, stream, {});
  return same.equally_strange > 0 ? std::nan("") : same.expected_squares;
}

bool are_disjoint(const std::vector<const Stream*>& streams) {
  std::vector<double> values = block_of(*streams.front());
  std::vector<bool> taken;
  std::vector<bool> has_something(streams.size());
  for (std::int64_t begin = 0, size = streams.front()->size(); begin < size; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, size - begin);
    taken.assign(static_cast<std::size_t>(n), false);
    for (std::size_t s = 0; s < streams.size(); ++s) {
      streams[s]->read(begin, n, values.data());
      for (std::int64_t i = 0; i < n; ++i) {
        if (values[i] == 0) continue;
        if (taken[i]) return false;
        taken[i] = has_something[s] = true;
      }
    }
  }
  return std::count(has_something.begin(), has_something.end(), true) > 1;
}

}  // namespace distgrad::dumps
