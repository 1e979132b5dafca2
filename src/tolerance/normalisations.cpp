// Bounds variances, and layer_norm and group_norm, which divide by their roots.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tolerance/rows.h"
#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

struct Moments {
  BoundedValue mean;
  BoundedValue deviation;  // sum of squared deviations from the mean
};

// Bounds any of the usual algorithms (two passes, updating, pairwise) by a relative error of n u
// kappa, kappa^2 = sum x^2 / sum (x-mean)^2 (Chan, Golub and LeVeque 1983, table 1; n u + (n u
// kappa)^2 for two passes).
Moments moments_of(const Buffer& row, const Arithmetic& arithmetic) {
  const auto n = static_cast<double>(row.size);
  Moments m;
  double squares = 0, total = 0, absolute = 0, errors = 0;
  bool constant_row = true;
  for (std::int64_t k = 0; k < row.size; ++k) {
    total += row.value(k);
    absolute += std::fabs(row.value(k)) + row.error(k);
    errors += row.error(k);
    squares += (std::fabs(row.value(k)) + row.error(k)) * (std::fabs(row.value(k)) + row.error(k));
    constant_row = constant_row && row.value(k) == row.value(0);
  }
  constant_row = constant_row && errors == 0;
  const double mean = total / n;
  m.mean = {constant_row ? row.value(0) : mean, errors / n};
  if (!constant_row)
    m.mean.error += (arithmetic.inner_gamma(n) + arithmetic.inner_gamma(1)) * absolute / n;
  double deviation = 0, propagated = 0;
  for (std::int64_t k = 0; k < row.size; ++k) {
    const double d = row.value(k) - mean;
    deviation += d * d;
    const double e = row.error(k) + errors / n;
    propagated += 2 * std::fabs(d) * e + e * e;
  }
  m.deviation = {constant_row ? 0 : deviation, propagated};
  if (!constant_row) {
    const double kappa_term = std::sqrt((deviation + propagated) * squares);
    const double gamma = arithmetic.inner_gamma(n + 2);
    m.deviation.error += gamma * kappa_term + gamma * gamma * squares;
  }
  return m;
}

BoundedValue row_variance(const Buffer& row, double correction, const Arithmetic& arithmetic) {
  const double freedom = static_cast<double>(row.size) - correction;
  if (row.size == 0) return {std::numeric_limits<double>::quiet_NaN(), 0};
  return moments_of(row, arithmetic).deviation / constant(std::max(0.0, freedom));
}

double correction_of(const OpCall& call) {
  if (call.index_of("correction") >= 0) return call.number("correction").value_or(1);
  return call.boolean("unbiased", true) ? 1 : 0;
}

// Returns the square root of a variance, which the run never makes negative, however near to zero
// it is.
BoundedValue root_of_variance(BoundedValue variance) {
  if (variance.exact()) return square_root(variance);
  const double root = std::sqrt(variance.value);
  const double up = std::sqrt(variance.value + variance.error) - root;
  const double down = root - std::sqrt(std::max(0.0, variance.value - variance.error));
  return computed(root, std::max(up, down), 1);
}

void variance(OpCall& call) {
  const Rows rows = rows_of(call, call.required_view("self"), dims_argument(call));
  const double correction = correction_of(call);
  const bool root = call.traits().name.starts_with("std");
  reduce_rows(call, call.result(), rows, [&](const Buffer& row, double out) -> BoundedValue {
    if (!std::isfinite(out)) return {out, any_cells(rows) && row.size > correction ? kInfinity : 0};
    const BoundedValue v = row_variance(row, correction, call.arithmetic());
    return root ? root_of_variance(v) : v;
  });
  if (call.results().size() < 2) return;
  reduce_rows(call, call.result(1), rows,
              [&](const Buffer& row, double) { return moments_of(row, call.arithmetic()).mean; });
}

struct Normalized {
  Moments moments;
  BoundedValue inverse;  // 1 / sqrt(variance + eps)
};

Normalized normalize(const Buffer& row, BoundedValue eps, const Arithmetic& arithmetic) {
  Normalized n;
  n.moments = moments_of(row, arithmetic);
  const BoundedValue variance = n.moments.deviation / constant(static_cast<double>(row.size));
  const BoundedValue shifted = variance + eps;
  if (!(shifted.value - shifted.error > 0)) {
    n.inverse = {1 / std::sqrt(shifted.value), shifted.exact() ? 0 : kInfinity};
    // The run's variance is not negative, and eps keeps it away from zero.
    if (eps.value > 0 && !shifted.exact())
      n.inverse.error = std::max(1 / std::sqrt(eps.value - eps.error) - n.inverse.value,
                                 n.inverse.value - 1 / std::sqrt(shifted.value + shifted.error));
    return n;
  }
  n.inverse = constant(1) / square_root(shifted);
  if (!n.inverse.exact())
    n.inverse.error += arithmetic.inner_rounding(n.inverse.value + n.inverse.error);
  return n;
}

// Holds what layer_norm and group_norm share: rows that are normalised, and the weight of element k
// of row r.
struct Normalization {
  Rows rows;
  std::int64_t channels = 0;  // elements of weight and bias
  std::int64_t groups = 1;    // row r belongs to group r % groups
  std::int64_t pixels = 1;    // consecutive elements of a row with one weight
  Dims weight_sizes;

  std::int64_t channel(std::int64_t row, std::int64_t k) const {
    return row % groups * (rows.length / pixels) + k / pixels;
  }
};

Normalization normalization_of(OpCall& call) {
  const BoundedView input = call.required_view("input");
  Normalization n;
  if (call.index_of("group") < 0) {
    const std::vector<std::int64_t> shape = call.integers("normalized_shape");
    std::vector<std::int64_t> dims(shape.size());
    std::iota(dims.begin(), dims.end(),
              static_cast<std::int64_t>(input.sizes.size() - shape.size()));
    n.rows = rows_of(call, input, dims);
    n.weight_sizes.assign(shape.begin(), shape.end());
    n.channels = n.rows.length;
    return n;
  }
  n.groups = call.integer("group", 1);
  n.channels = call.integer("C", 1);
  n.pixels = call.integer("HxW", 1);
  n.weight_sizes = {n.channels};
  n.rows.all = call.read(input);
  n.rows.count = call.integer("N", 1) * n.groups;
  n.rows.length = n.rows.count == 0 ? 0 : n.rows.all.size / n.rows.count;
  for (std::size_t d = 0; d < input.sizes.size(); ++d)
    n.rows.order.push_back(static_cast<std::int64_t>(d));
  return n;
}

// Bounds y = (x - mean) * rstd * weight + bias.
void normalization(OpCall& call) {
  const Arithmetic& arithmetic = call.arithmetic();
  const Normalization shape = normalization_of(call);
  const Buffer weight = read_or_none(call, "weight", shape.weight_sizes);
  const Buffer bias = read_or_none(call, "bias", shape.weight_sizes);
  const InArithmetic outer(arithmetic);
  const BoundedValue eps = rounded_constant(call.number("eps").value_or(1e-5));
  std::vector<Normalized> all;
  map_rows(
      call, call.result(), shape.rows, [&](const Buffer& row, const Buffer& out, double* errors) {
        const auto r = static_cast<std::int64_t>(all.size());
        const Normalized& n = all.emplace_back(normalize(row, eps, arithmetic));
        for (std::int64_t k = 0; k < row.size; ++k) {
          const BoundedValue centred = row.number(k) - n.moments.mean;
          BoundedValue y = centred * n.inverse;
          const BoundedValue w = weight.size ? weight.number(shape.channel(r, k)) : constant(1);
          if (weight.size) y = y * w;
          // Some kernels compute x * (rstd * weight) + (bias - mean * rstd * weight), with
          // roundings of each part.
          y.error += arithmetic.inner_gamma(3) *
                     (std::fabs(row.value(k)) + std::fabs(n.moments.mean.value)) *
                     (n.inverse.value + n.inverse.error) * (std::fabs(w.value) + w.error);
          if (bias.size) {
            const BoundedValue b = bias.number(shape.channel(r, k));
            y = y + b;
            if (row.value(k) != 0 || n.moments.mean.value != 0)
              y.error += arithmetic.inner_rounding(std::fabs(b.value));
          }
          errors[k] = stored_error(y, out.value(k));
        }
      });
  if (call.results().size() < 3 || call.result(1).numel() != shape.rows.count) return;
  double* means = call.arena().doubles(shape.rows.count);
  double* inverses = call.arena().doubles(shape.rows.count);
  const Buffer mean_out = call.read(call.result(1)), inverse_out = call.read(call.result(2));
  for (std::int64_t i = 0; i < shape.rows.count && shape.rows.length > 0; ++i) {
    means[i] = stored_error(all[i].moments.mean, mean_out.value(i));
    inverses[i] = stored_error(all[i].inverse, inverse_out.value(i));
  }
  call.write_errors(call.result(1), mean_out, means);
  call.write_errors(call.result(2), inverse_out, inverses);
}

// Sums BoundedValues in any order, in the kernel's inner arithmetic.
template <typename F>
BoundedValue total_of(OpCall& call, std::int64_t count, const F& term_at) {
  double* values = call.arena().doubles(count);
  Cell* cells = call.arena().cells(count);
  BoundedValue total;
  for (std::int64_t k = 0; k < count; ++k) {
    const BoundedValue term = term_at(k);
    values[k] = term.value;
    if (!term.exact()) cells[k] = inexact_cell(term.value, term.error);
    total.value += term.value;
  }
  bool exact = false;
  total.error = sum_error({values, cells, count, 1}, call.arithmetic(), &exact);
  return total;
}

// Bounds dx = rstd (g w - mean(g w) - xhat mean(g w xhat)), dw = sum g xhat and db = sum g.
void normalization_backward(OpCall& call) {
  const Arithmetic& arithmetic = call.arithmetic();
  const Normalization shape = normalization_of(call);
  const Rows& x = shape.rows;
  const Buffer g = [&] {
    const BoundedView gradient = permuted(call.required_view("grad_out"), x.order);
    return call.read(gradient, gradient.sizes);
  }();
  const Buffer weight = read_or_none(call, "weight", shape.weight_sizes);
  const Buffer mean = call.read(call.required_view("mean")),
               inverse = call.read(call.required_view("rstd"));
  const InArithmetic in(arithmetic);
  const auto n = static_cast<double>(x.length);
  std::vector<BoundedValue> hats(static_cast<std::size_t>(x.count * x.length));
  for (std::int64_t r = 0; r < x.count; ++r)
    for (std::int64_t k = 0; k < x.length; ++k) {
      BoundedValue hat = (x.row(r).number(k) - mean.number(r)) * inverse.number(r);
      hat.error += arithmetic.inner_rounding(
          (std::fabs(x.row(r).value(k)) + std::fabs(mean.value(r))) * inverse.value(r));
      hats[r * x.length + k] = hat;
    }
  if (is_real_floating(call.result(0))) {
    std::int64_t r = 0;
    map_rows(call, call.result(0), x, [&](const Buffer&, const Buffer& out, double* errors) {
      const auto weighted = [&](std::int64_t k) {
        const BoundedValue gradient = g.number(r * x.length + k);
        return weight.size ? gradient * weight.number(shape.channel(r, k)) : gradient;
      };
      const BoundedValue* hat = hats.data() + r * x.length;
      const BoundedValue sum_g = total_of(call, x.length, weighted);
      const BoundedValue sum_gx =
          total_of(call, x.length, [&](std::int64_t k) { return weighted(k) * hat[k]; });
      // Some kernels sum g w x and subtract mean * sum g w from it.
      double rearranged = 0;
      for (std::int64_t k = 0; k < x.length; ++k)
        rearranged += std::fabs(weighted(k).value) *
                      (std::fabs(x.row(r).value(k)) + std::fabs(mean.value(r)));
      rearranged *=
          arithmetic.inner_gamma(n + 3) * (std::fabs(inverse.value(r)) + inverse.error(r)) / n;
      for (std::int64_t k = 0; k < x.length; ++k) {
        const BoundedValue a = weighted(k), b = sum_g / constant(n),
                           c = hat[k] * sum_gx / constant(n);
        BoundedValue dx = (a - b - c) * inverse.number(r);
        const double scale = std::fabs(inverse.value(r)) + inverse.error(r);
        dx.error +=
            scale * (arithmetic.inner_gamma(4) *
                         (std::fabs(a.value) + std::fabs(b.value) + std::fabs(c.value)) +
                     rearranged * (std::fabs(hat[k].value) + std::fabs(mean.value(r)) * scale));
        errors[k] = stored_error(dx, out.value(k));
      }
      ++r;
    });
  }
  for (const std::size_t which : {1U, 2U}) {
    if (call.results().size() <= which || !is_real_floating(call.result(which))) continue;
    const Buffer out = call.read(call.result(which));
    double* errors = call.arena().doubles(out.size);
    std::vector<std::vector<std::int64_t>> elements(static_cast<std::size_t>(out.size));
    for (std::int64_t r = 0; r < x.count; ++r)
      for (std::int64_t k = 0; k < x.length; ++k)
        elements[shape.channel(r, k)].push_back(r * x.length + k);
    for (std::int64_t c = 0; c < out.size; ++c) {
      const std::vector<std::int64_t>& own = elements[c];
      BoundedValue total =
          total_of(call, static_cast<std::int64_t>(own.size()), [&](std::int64_t k) {
            const BoundedValue gradient = g.number(own[k]);
            return which == 1 ? gradient * hats[own[k]] : gradient;
          });
      if (which == 1) {  // some kernels scale sum g x - mean sum g
        double rearranged = 0;
        for (const std::int64_t at : own) {
          const std::int64_t r = at / x.length;
          rearranged += std::fabs(g.value(at)) *
                        (std::fabs(x.all.value(at)) + std::fabs(mean.value(r))) *
                        std::fabs(inverse.value(r));
        }
        total.error += arithmetic.inner_gamma(static_cast<double>(own.size()) + 2) * rearranged;
      }
      errors[c] = stored_error(total, out.value(c));
    }
    call.write_errors(call.result(which), out, errors);
  }
}

constexpr RuleRow kNormalisationRules[] = {
    // operator, rule
    {"var", variance},
    {"var_mean", variance},
    {"std", variance},
    {"std_mean", variance},
    {"native_layer_norm", normalization},
    {"native_layer_norm_backward", normalization_backward},
    {"native_group_norm", normalization},
    {"native_group_norm_backward", normalization_backward},
};

}  // namespace

std::span<const RuleRow> normalisation_rules() { return kNormalisationRules; }

}  // namespace distgrad::tolerance
