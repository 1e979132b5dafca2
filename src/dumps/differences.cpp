#include "dumps/differences.h"

#include <algorithm>
#include <cmath>

namespace distgrad::dumps {
namespace {

constexpr std::int64_t kBlock =
    8192;  // elements; two blocks of float64 fit into a core's own cache

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Where the squares of such small numbers would vanish the largest error decides alone.
bool squares_are_usable(const Differences& d) {
  return std::isfinite(d.error_squares) && std::isfinite(d.expected_squares) &&
         d.max_expected > 1e-140;
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
    if (same(o, e)) return;
    if (d_.strange++ == 0) set_worst(o, e, at);
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

double default_rtol(DType dtype) {
  // Multiples of the unit roundoff: what another order of sums and another kernel leave after a
  // deep network. Below them lie the mistakes of a distributed program by orders of magnitude,
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

void Stream::read(std::int64_t begin, std::int64_t count, double* out) const {
  terms.front().read(begin, count, out);
  double more[kBlock];
  for (std::size_t t = 1; t < terms.size(); ++t)
    for (std::int64_t done = 0; done < count; done += kBlock) {
      const std::int64_t n = std::min(kBlock, count - done);
      terms[t].read(begin + done, n, more);
      for (std::int64_t i = 0; i < n; ++i) out[done + i] += more[i];
    }
  if (factor == 1) return;
  for (std::int64_t i = 0; i < count; ++i) out[i] *= factor;
}

double Differences::relative_error() const {
  if (strange > 0) return HUGE_VAL;
  if (error_squares == 0 && max_error == 0) return 0;
  if (max_expected == 0) return HUGE_VAL;
  if (std::isfinite(error_squares) && std::isfinite(expected_squares) && max_expected > 1e-140)
    return std::sqrt(error_squares / expected_squares);
  return max_error / max_expected;
}

Differences measure(const Stream& observed, const Stream& expected, const Bound& bound) {
  std::vector<double> o(kBlock), e(kBlock);
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
  if (d.max_error > bound.atol + bound.floor + bound.rtol * d.max_expected) return false;
  // A piece that is nothing but rounding beside the rest of its tensor has no norm to hold on to.
  if (!squares_are_usable(d) || d.max_expected <= bound.floor) return true;
  const double n = std::sqrt(static_cast<double>(d.size));
  return std::sqrt(d.error_squares) <= bound.atol * n + bound.rtol * std::sqrt(d.expected_squares);
}

bool agrees(const Stream& observed, const Stream& expected, double factor, const Bound& bound,
            double max_expected) {
  const double scale = std::abs(factor);
  const double limit = bound.atol + bound.floor * scale + bound.rtol * scale * max_expected;
  const auto is_beyond = [&](double o, double e) {
    const double error = std::abs(o - e);
    if (!std::isfinite(error)) return !same(o, e);
    return error > (bound.elementwise ? bound.atol + bound.rtol * std::abs(e) : limit);
  };
  std::vector<double> o(kBlock), e(kBlock);
  double error_squares = 0, expected_squares = 0;
  const std::int64_t size = observed.size();
  // The first blocks are small: most hypotheses end there.
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
  }
  if (bound.elementwise || !std::isfinite(expected_squares) || max_expected * scale <= 1e-140 ||
      max_expected <= bound.floor)
    return true;
  const double n = std::sqrt(static_cast<double>(size));
  return std::sqrt(error_squares) <= bound.atol * n + bound.rtol * std::sqrt(expected_squares);
}

double largest(const Stream& stream) {
  std::vector<double> values(kBlock);
  double found = 0;
  for (std::int64_t begin = 0, size = stream.size(); begin < size; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, size - begin);
    stream.read(begin, n, values.data());
    for (std::int64_t i = 0; i < n; ++i) {
      const double magnitude = std::abs(values[i]);
      if (magnitude > found && std::isfinite(magnitude)) found = magnitude;
    }
  }
  return found;
}

}  // namespace distgrad::dumps
