// Computes pointwise operators and their backward kernels on BoundedValues. Figures in ulps are the
// largest that the documentation of Sleef (u10, u15, u35 variants), MKL VML (HA) and CUDA's
// mathematical functions gives for float32 and float64; docs/tolerance.md has the table.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

const BoundedValue kZero = {0, 0};
const BoundedValue kOne = {1, 0};
const BoundedValue kHalf = {0.5, 0};

using Args = const BoundedValue*;

// Returns a value that is exact by definition, with the error of a piecewise function of slope at
// most 1.
BoundedValue piece(double value, double error) { return {value, error}; }

// Bounds a monotone f without rounding of its own (max, clamp).
template <typename F>
BoundedValue exact_monotone(const F& f, BoundedValue x) {
  const double value = f(x.value);
  if (x.exact()) return {value, 0};
  return {value, std::max(std::fabs(f(x.value + x.error) - value),
                          std::fabs(f(x.value - x.error) - value))};
}

BoundedValue larger(BoundedValue a, BoundedValue b) {
  const double value = std::max(a.value, b.value);
  return {value, std::max(std::max(a.value + a.error, b.value + b.error) - value,
                          value - std::max(a.value - a.error, b.value - b.error))};
}
BoundedValue smaller(BoundedValue a, BoundedValue b) { return -larger(-a, -b); }

BoundedValue at_special(BoundedValue x, double where, double value, BoundedValue otherwise) {
  return x.exact() && x.value == where ? exactly(value) : otherwise;
}

// ---- elementary functions

constexpr double kTrigUlps = 4, kHyperbolicUlps = 3, kLogUlps = 1, kPowUlps = 4;

BoundedValue exponential(BoundedValue x) {
  return at_special(x, 0, 1, monotone([](double v) { return std::exp(v); }, x, kExpUlps));
}
BoundedValue exponential_minus_1(BoundedValue x) {
  return at_special(x, 0, 0, monotone([](double v) { return std::expm1(v); }, x, kExpUlps));
}
BoundedValue logarithm(BoundedValue x) {
  return at_special(x, 1, 0, monotone([](double v) { return std::log(v); }, x, kLogUlps));
}
BoundedValue logarithm_1_plus(BoundedValue x) {
  return at_special(x, 0, 0, monotone([](double v) { return std::log1p(v); }, x, kLogUlps));
}
BoundedValue hyperbolic_tangent(BoundedValue x) {
  return at_special(x, 0, 0, monotone([](double v) { return std::tanh(v); }, x, 2));
}
BoundedValue logistic(BoundedValue x) { return kOne / (kOne + exponential(-x)); }
BoundedValue sine(BoundedValue x) {
  // |sin(x + d) - sin x| is at most |cos x| |d| + d^2/2, and at most 2.
  const double error =
      std::min(2.0, std::fabs(std::cos(x.value)) * x.error + x.error * x.error / 2);
  return at_special(x, 0, 0, computed(std::sin(x.value), error, kTrigUlps));
}
BoundedValue cosine(BoundedValue x) {
  const double error =
      std::min(2.0, std::fabs(std::sin(x.value)) * x.error + x.error * x.error / 2);
  return at_special(x, 0, 1, computed(std::cos(x.value), error, kTrigUlps));
}
BoundedValue absolute(BoundedValue x) { return {std::fabs(x.value), x.error}; }
// Vectorised kernels use polynomials of absolute, not relative, accuracy (Abramowitz and Stegun
// 7.1.26: 1.5e-7). `ulps` of 1 are added for that.
BoundedValue error_function(BoundedValue x, double ulps = 2) {
  const double value = std::erf(x.value);
  const double slope = 2 / std::sqrt(std::numbers::pi);
  if (x.exact() && x.value == 0) return exactly(0);
  BoundedValue y = computed(value, slope * x.error, 1);
  y.error += current_arithmetic().inner_rounding(1.0, ulps);
  return y;
}

// Bounds log(exp a + exp b), computed as max + log1p(exp(min - max)).
BoundedValue log_add_exp(BoundedValue a, BoundedValue b, double base) {
  const BoundedValue high = larger(a, b), low = smaller(a, b);
  if (base == 2) {
    const BoundedValue power =
        monotone([](double v) { return std::exp2(v); }, low - high, kExpUlps);
    return high + monotone([](double v) { return std::log2(1 + v); }, power, 2);
  }
  return high + logarithm_1_plus(exponential(low - high));
}

// Takes the largest deviation at the corners of the box x±e, y±e, which is exact if f is monotone
// in each argument.
template <typename F>
BoundedValue at_corners(const F& f, BoundedValue x, BoundedValue y, double ulps) {
  const double value = f(x.value, y.value);
  double deviation = 0;
  if (!x.exact() || !y.exact())
    for (const double sx : {-1.0, 1.0})
      for (const double sy : {-1.0, 1.0}) {
        const double d = std::fabs(f(x.value + sx * x.error, y.value + sy * y.error) - value);
        deviation = std::isnan(d) ? kInfinity : std::max(deviation, d);
      }
  return computed(value, deviation, ulps);
}

BoundedValue power(BoundedValue x, BoundedValue y) {
  if (y.exact()) {  // torch's kernels treat these cases apart
    if (y.value == 0) return exactly(1);
    if (y.value == 1) return x;
    if (y.value == 2) return x * x;
    if (y.value == 3) return x * x * x;
    if (y.value == -1) return kOne / x;
    if (y.value == -2) return kOne / (x * x);
    if (y.value == 0.5) return square_root(x);
  }
  const auto raise = [](double a, double b) { return std::pow(a, b); };
  if (x.exact() && y.exact() && (x.value == 1 || x.value == 0))
    return exactly(raise(x.value, y.value));
  const bool integer = y.exact() && y.value == std::floor(y.value);
  const bool holds_zero = std::fabs(x.value) <= x.error;
  if (holds_zero && !x.exact() && (y.value < 0 || !integer))
    return {raise(x.value, y.value), kInfinity};
  BoundedValue result = at_corners(raise, x, y, kPowUlps);
  // Even powers have their minimum inside an interval around zero.
  if (holds_zero) result.error = std::max(result.error, std::fabs(result.value));
  return result;
}

// ---- rounding to integers

BoundedValue step_function(double (*f)(double), BoundedValue x, double jump_at) {
  branch(x, jump_at);
  const double value = f(x.value);
  return {value,
          x.exact() ? 0 : std::max(f(x.value + x.error) - value, value - f(x.value - x.error))};
}
double nearest_integer(double v) { return std::nearbyint(v); }
double sign_of(double v) { return v > 0 ? 1 : v < 0 ? -1 : 0; }

BoundedValue remainder_of(BoundedValue a, BoundedValue b, bool floored) {
  const double quotient = a.value / b.value;
  const double times = floored ? std::floor(quotient) : std::trunc(quotient);
  if (a.exact() && b.exact()) {
    const double rest = std::fmod(a.value, b.value);  // exact
    if (floored && rest != 0 && (rest < 0) != (b.value < 0)) return constant(rest) + b;
    return constant(rest);
  }
  const BoundedValue q = a / b;
  branch(q, std::nearbyint(q.value));
  const double value = a.value - times * b.value;
  return computed(value, a.error + std::fabs(times) * b.error, 1);
}

// ---- activations

BoundedValue relu(BoundedValue x) {
  branch(x, 0.0);
  return exact_monotone([](double v) { return v > 0 ? v : v == v ? 0 : v; }, x);
}
BoundedValue clamped(BoundedValue x, BoundedValue low, BoundedValue high) {
  if (given(low)) {
    branch(x, low);
    x = larger(x, low);
  }
  if (given(high)) {
    branch(x, high);
    x = smaller(x, high);
  }
  return x;
}
// Clamps between two constants, as relu6 does.
BoundedValue gate(BoundedValue x, double low, double high) {
  return clamped(x, constant(low), constant(high));
}

// Bounds 1 + erf(x / sqrt 2), as gelu's own kernels compute it. With AVX2 they evaluate that
// polynomial in float32: over all float32 in [2^-20, 8) and their negatives gelu is off by up to
// 10.9 * 2^-24 of x / 2, with and without oneDNN (torch 2.15).
BoundedValue doubled_normal_cdf(BoundedValue x) {
  constexpr double kGeluUlps = 6;
  return kOne + error_function(x * rounded_constant(std::numbers::sqrt2 / 2), kGeluUlps);
}
BoundedValue gelu(BoundedValue x, bool by_tanh) {
  if (by_tanh) {
    const BoundedValue beta = rounded_constant(std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
    const BoundedValue inner = beta * (x + rounded_constant(0.044715) * (x * x * x));
    return kHalf * x * (kOne + hyperbolic_tangent(inner));
  }
  return x * kHalf * doubled_normal_cdf(x);
}
BoundedValue gelu_backward(BoundedValue g, BoundedValue x, bool by_tanh) {
  if (by_tanh) {
    const BoundedValue beta = rounded_constant(std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
    const BoundedValue kappa = rounded_constant(0.044715);
    const BoundedValue t = hyperbolic_tangent(beta * (x + kappa * (x * x * x)));
    const BoundedValue left = kHalf * (kOne + t);
    const BoundedValue slope = beta * (kOne + constant(3) * kappa * (x * x));
    return g * (left + kHalf * x * (kOne - t * t) * slope);
  }
  const BoundedValue cdf = kHalf * doubled_normal_cdf(x);
  const BoundedValue scale = rounded_constant(std::numbers::inv_sqrtpi * std::numbers::sqrt2 / 2);
  const BoundedValue pdf = exponential(-kHalf * (x * x)) * scale;
  return g * (cdf + x * pdf);
}
bool by_tanh() {
  const c10::IValue* how = current_call().argument("approximate");
  return how != nullptr && how->isString() && how->toStringRef() == "tanh";
}

BoundedValue softplus(BoundedValue x, BoundedValue beta, BoundedValue threshold) {
  const BoundedValue z = x * beta;
  branch(z, threshold);
  if (z.value > threshold.value) return x;
  return logarithm_1_plus(exponential(z)) / beta;
}
BoundedValue softplus_backward(BoundedValue g, BoundedValue x, BoundedValue beta,
                               BoundedValue threshold) {
  const BoundedValue z = x * beta;
  if (z.value > threshold.value) return g;
  const BoundedValue e = exponential(z);
  return g * e / (e + kOne);
}
BoundedValue elu(BoundedValue x, BoundedValue alpha, BoundedValue scale, BoundedValue input_scale) {
  if (alpha.value * input_scale.value != 1) branch(x, 0.0);
  return x.value <= 0 ? exponential_minus_1(x * input_scale) * (alpha * scale) : x * scale;
}
BoundedValue elu_backward(Args a) {
  const BoundedValue g = a[0], alpha = a[1], scale = a[2], input_scale = a[3], x = a[5];
  const BoundedValue low = alpha * scale;
  if (x.value > 0) return g * scale;
  return a[4].value != 0 ? g * input_scale * (x + low)
                         : g * input_scale * low * exponential(x * input_scale);
}
BoundedValue mish_inner(BoundedValue x) {
  return hyperbolic_tangent(logarithm_1_plus(exponential(x)));
}
BoundedValue log_sigmoid(BoundedValue x) {
  return smaller(kZero, x) - logarithm_1_plus(exponential(-absolute(x)));
}
BoundedValue divided_by_number(BoundedValue a, BoundedValue b) {
  // CUDA divides by a number by multiplying with its rounded reciprocal. Powers of two are exact
  // either way.
  const BoundedValue quotient = a / b;
  int exponent = 0;
  if (a.value == 0 || (b.exact() && std::fabs(std::frexp(b.value, &exponent)) == 0.5))
    return quotient;
  return computed(quotient.value, quotient.error, 0.5);
}
bool divisor_is_number() {
  const OpCall& call = current_call();
  const std::optional<BoundedView> divisor = call.view("other");
  return divisor && divisor->wrapped;
}

BoundedValue divided(Args a) {
  BoundedValue quotient = divisor_is_number() ? divided_by_number(a[0], a[1]) : a[0] / a[1];
  const c10::IValue* mode = current_call().argument("rounding_mode");
  if (mode == nullptr) return quotient;
  branch(quotient, std::nearbyint(quotient.value));
  return step_function(
      mode->toStringRef() == "floor" ? +[](double v) { return std::floor(v); }
                                     : +[](double v) { return std::trunc(v); },
      {quotient.value, a[0].exact() && a[1].exact() ? 0 : quotient.error}, quotient.value + 1);
}

// ---- losses, before their reduction

BoundedValue smooth_l1(BoundedValue x, BoundedValue y, BoundedValue beta) {
  const BoundedValue d = x - y, z = absolute(d);
  if (beta.value == 0) {
    branch(d, 0.0);
    return z;
  }
  return z.value < beta.value ? kHalf * z * z / beta : z - kHalf * beta;
}
BoundedValue huber(BoundedValue x, BoundedValue y, BoundedValue delta) {
  const BoundedValue z = absolute(x - y);
  return z.value <= delta.value ? kHalf * z * z : delta * (z - kHalf * delta);
}
BoundedValue log_at_least_minus_100(BoundedValue x) { return larger(logarithm(x), constant(-100)); }

const Formula kFormulas[] = {
    // operator, arguments, formula
    {"mul", {"self", "other"}, [](Args a) { return a[0] * a[1]; }},
    {"div", {"self", "other"}, divided},
    {"abs",
     {"self"},
     [](Args a) {
       branch(a[0], 0.0);
       return absolute(a[0]);
     }},
    {"square", {"self"}, [](Args a) { return a[0] * a[0]; }},
    {"reciprocal", {"self"}, [](Args a) { return kOne / a[0]; }},
    {"sqrt", {"self"}, [](Args a) { return square_root(a[0]); }},
    {"rsqrt",
     {"self"},
     [](Args a) {
       const BoundedValue y = kOne / square_root(a[0]);
       return y.exact() ? y : computed(y.value, y.error, 0.5);
     },
     true},
    {"pow", {"self", "exponent"}, [](Args a) { return power(a[0], a[1]); }, true},
    {"exp", {"self"}, [](Args a) { return exponential(a[0]); }},
    {"exp2",
     {"self"},
     [](Args a) {
       return at_special(a[0], 0, 1,
                         monotone([](double v) { return std::exp2(v); }, a[0], kExpUlps));
     }},
    {"expm1", {"self"}, [](Args a) { return exponential_minus_1(a[0]); }},
    {"log", {"self"}, [](Args a) { return logarithm(a[0]); }},
    {"log2",
     {"self"},
     [](Args a) {
       return at_special(a[0], 1, 0,
                         monotone([](double v) { return std::log2(v); }, a[0], kLogUlps));
     }},
    {"log10",
     {"self"},
     [](Args a) {
       return at_special(a[0], 1, 0, monotone([](double v) { return std::log10(v); }, a[0], 2));
     }},
    {"log1p", {"self"}, [](Args a) { return logarithm_1_plus(a[0]); }},
    {"sin", {"self"}, [](Args a) { return sine(a[0]); }},
    {"cos", {"self"}, [](Args a) { return cosine(a[0]); }},
    {"tan",
     {"self"},
     [](Args a) {
       if (std::fabs(std::cos(a[0].value)) <= a[0].error)
         return BoundedValue{std::tan(a[0].value), kInfinity};
       return at_special(a[0], 0, 0,
                         monotone([](double v) { return std::tan(v); }, a[0], kTrigUlps));
     }},
    {"asin",
     {"self"},
     [](Args a) {
       return at_special(a[0], 0, 0, monotone([](double v) { return std::asin(v); }, a[0], 2));
     }},
    {"acos",
     {"self"},
     [](Args a) {
       return at_special(a[0], 1, 0, monotone([](double v) { return std::acos(v); }, a[0], 2));
     }},
    {"atan",
     {"self"},
     [](Args a) {
       return at_special(a[0], 0, 0, monotone([](double v) { return std::atan(v); }, a[0], 2));
     }},
    {"sinh",
     {"self"},
     [](Args a) {
       return at_special(a[0], 0, 0,
                         monotone([](double v) { return std::sinh(v); }, a[0], kHyperbolicUlps));
     }},
    {"cosh",
     {"self"},
     [](Args a) {
       return at_special(a[0], 0, 1,
                         monotone([](double v) { return std::cosh(v); }, a[0], kHyperbolicUlps));
     }},
    {"tanh", {"self"}, [](Args a) { return hyperbolic_tangent(a[0]); }},
    {"asinh",
     {"self"},
     [](Args a) {
       return at_special(a[0], 0, 0,
                         monotone([](double v) { return std::asinh(v); }, a[0], kHyperbolicUlps));
     }},
    {"acosh",
     {"self"},
     [](Args a) {
       return at_special(a[0], 1, 0,
                         monotone([](double v) { return std::acosh(v); }, a[0], kHyperbolicUlps));
     }},
    {"atanh",
     {"self"},
     [](Args a) {
       return at_special(a[0], 0, 0,
                         monotone([](double v) { return std::atanh(v); }, a[0], kHyperbolicUlps));
     }},
    {"erf", {"self"}, [](Args a) { return error_function(a[0]); }},
    {"erfc",
     {"self"},
     [](Args a) {
       return at_special(a[0], 0, 1,
                         monotone([](double v) { return std::erfc(v); }, a[0], kTrigUlps));
     }},
    {"sigmoid", {"self"}, [](Args a) { return logistic(a[0]); }, true},
    {"sinc",
     {"self"},
     [](Args a) {
       if (a[0].exact() && a[0].value == 0) return exactly(1);
       const BoundedValue z = a[0] * rounded_constant(std::numbers::pi);
       return sine(z) / z;
     }},
    {"atan2",
     {"self", "other"},
     [](Args a) {
       const double r = std::hypot(a[0].value, a[1].value) - std::hypot(a[0].error, a[1].error);
       if (!(r > 0) && !(a[0].exact() && a[1].exact()))
         return BoundedValue{std::atan2(a[0].value, a[1].value), kInfinity};
       if (a[1].value - a[1].error < 0) branch(a[0], 0.0);  // the jump of 2 pi on the negative axis
       const double error =
           a[0].exact() && a[1].exact() ? 0 : std::hypot(a[0].error, a[1].error) / r;
       return at_special(a[0], 0, std::atan2(a[0].value, a[1].value),
                         computed(std::atan2(a[0].value, a[1].value), error, 3));
     }},
    {"hypot",
     {"self", "other"},
     [](Args a) {
       return computed(std::hypot(a[0].value, a[1].value), std::hypot(a[0].error, a[1].error), 3);
     }},
    {"xlogy",
     {"self", "other"},
     [](Args a) {
       return a[0].exact() && a[0].value == 0 && !std::isnan(a[1].value) ? exactly(0)
                                                                         : a[0] * logarithm(a[1]);
     },
     true},
    {"special_xlog1py",
     {"self", "other"},
     [](Args a) {
       return a[0].exact() && a[0].value == 0 && !std::isnan(a[1].value)
                  ? exactly(0)
                  : a[0] * logarithm_1_plus(a[1]);
     },
     true},
    {"special_entr",
     {"self"},
     [](Args a) {
       if (a[0].exact() && a[0].value == 0) return exactly(0);
       return -a[0] * logarithm(a[0]);
     },
     true},
    {"logaddexp", {"self", "other"}, [](Args a) { return log_add_exp(a[0], a[1], 1); }},
    {"logaddexp2", {"self", "other"}, [](Args a) { return log_add_exp(a[0], a[1], 2); }},
    {"floor",
     {"self"},
     [](Args a) {
       return step_function([](double v) { return std::floor(v); }, a[0],
                            std::nearbyint(a[0].value));
     }},
    {"ceil",
     {"self"},
     [](Args a) {
       return step_function([](double v) { return std::ceil(v); }, a[0],
                            std::nearbyint(a[0].value));
     }},
    {"trunc",
     {"self"},
     [](Args a) {
       return step_function([](double v) { return std::trunc(v); }, a[0],
                            std::nearbyint(a[0].value));
     }},
    {"round",
     {"self"},
     [](Args a) { return step_function(nearest_integer, a[0], std::floor(a[0].value) + 0.5); }},
    {"frac",
     {"self"},
     [](Args a) {
       branch(a[0], std::nearbyint(a[0].value));
       return piece(a[0].value - std::trunc(a[0].value), a[0].error);
     }},
    {"sign", {"self"}, [](Args a) { return step_function(sign_of, a[0], 0); }},
    {"sgn",
     {"self"},
     [](Args a) {
       branch(a[0], 0.0);
       return exactly(sign_of(a[0].value));
     }},
    {"heaviside",
     {"self", "values"},
     [](Args a) {
       branch(a[0], 0.0);
       if (a[0].value != a[0].value) return a[0];
       return a[0].value == 0 ? a[1] : exactly(a[0].value > 0 ? 1 : 0);
     }},
    {"copysign",
     {"self", "other"},
     [](Args a) {
       branch(a[1], 0.0);
       branch(a[0], 0.0);
       return piece(std::copysign(a[0].value, a[1].value), a[0].error);
     }},
    {"fmod", {"self", "other"}, [](Args a) { return remainder_of(a[0], a[1], false); }},
    {"remainder", {"self", "other"}, [](Args a) { return remainder_of(a[0], a[1], true); }},
    {"floor_divide",
     {"self", "other"},
     [](Args a) {
       const BoundedValue q = a[0] / a[1];
       branch(q, std::nearbyint(q.value));
       return exactly(std::floor(q.value));
     }},
    {"nan_to_num", {"self"}, [](Args a) { return a[0]; }},
    {"maximum",
     {"self", "other"},
     [](Args a) {
       branch(a[0], a[1]);
       return larger(a[0], a[1]);
     }},
    {"minimum",
     {"self", "other"},
     [](Args a) {
       branch(a[0], a[1]);
       return smaller(a[0], a[1]);
     }},
    {"fmax",
     {"self", "other"},
     [](Args a) {
       branch(a[0], a[1]);
       return larger(a[0], a[1]);
     }},
    {"fmin",
     {"self", "other"},
     [](Args a) {
       branch(a[0], a[1]);
       return smaller(a[0], a[1]);
     }},
    {"clamp", {"self", "min", "max"}, [](Args a) { return clamped(a[0], a[1], a[2]); }},
    {"clamp_min",
     {"self", "min"},
     [](Args a) {
       return clamped(a[0], a[1], {0, -1});
     }},
    {"clamp_max",
     {"self", "max"},
     [](Args a) {
       return clamped(a[0], {0, -1}, a[1]);
     }},
    {"hardtanh", {"self", "min_val", "max_val"}, [](Args a) { return clamped(a[0], a[1], a[2]); }},
    {"lerp",
     {"self", "end", "weight"},
     [](Args a) {
       if (std::fabs(a[2].value) < 0.5) return a[0] + a[2] * (a[1] - a[0]);
       return a[1] - (a[1] - a[0]) * (kOne - a[2]);
     }},
    {"addcmul",
     {"self", "tensor1", "tensor2", "value"},
     [](Args a) { return a[0] + a[3] * a[1] * a[2]; }},
    {"addcdiv",
     {"self", "tensor1", "tensor2", "value"},
     [](Args a) { return a[0] + a[3] * a[1] / a[2]; }},
    {"relu", {"self"}, [](Args a) { return relu(a[0]); }},
    {"relu6", {"self"}, [](Args a) { return gate(a[0], 0, 6); }},
    {"leaky_relu",
     {"self", "negative_slope"},
     [](Args a) {
       branch(a[0], 0.0);
       return a[0].value > 0 ? a[0] : a[0] * a[1];
     }},
    {"threshold",
     {"self", "threshold", "value"},
     [](Args a) {
       branch(a[0], a[1]);
       return a[0].value <= a[1].value ? a[2] : a[0];
     }},
    {"elu",
     {"self", "alpha", "scale", "input_scale"},
     [](Args a) { return elu(a[0], a[1], a[2], a[3]); }},
    {"gelu", {"self"}, [](Args a) { return gelu(a[0], by_tanh()); }},
    {"silu", {"self"}, [](Args a) { return a[0] / (kOne + exponential(-a[0])); }},
    {"mish", {"self"}, [](Args a) { return a[0] * mish_inner(a[0]); }},
    {"hardsigmoid", {"self"}, [](Args a) { return gate(a[0] + constant(3), 0, 6) / constant(6); }},
    {"hardswish",
     {"self"},
     [](Args a) { return a[0] * gate(a[0] + constant(3), 0, 6) / constant(6); }},
    {"hardshrink",
     {"self", "lambd"},
     [](Args a) {
       branch(a[0], a[1]);
       branch(a[0], -a[1]);
       return std::fabs(a[0].value) <= a[1].value ? kZero : a[0];
     }},
    {"softshrink",
     {"self", "lambd"},
     [](Args a) {
       branch(a[0], a[1]);
       branch(a[0], -a[1]);
       return a[0].value > a[1].value    ? a[0] - a[1]
              : a[0].value < -a[1].value ? a[0] + a[1]
                                         : kZero;
     }},
    {"softplus", {"self", "beta", "threshold"}, [](Args a) { return softplus(a[0], a[1], a[2]); }},
    {"log_sigmoid", {"self"}, [](Args a) { return log_sigmoid(a[0]); }},
    {"_prelu_kernel",
     {"self", "weight"},
     [](Args a) {
       branch(a[0], 0.0);
       return a[0].value > 0 ? a[0] : a[0] * a[1];
     }},
    {"log_sigmoid_forward", {"self"}, [](Args a) { return log_sigmoid(a[0]); }},
    {"logit",
     {"self", "eps"},
     [](Args a) {
       BoundedValue x = a[0];
       if (given(a[1])) x = clamped(x, a[1], kOne - a[1]);
       return logarithm(x / (kOne - x));
     },
     true},
    // backward kernels
    {"tanh_backward",
     {"grad_output", "output"},
     [](Args a) { return a[0] * (kOne - a[1] * a[1]); }},
    {"sigmoid_backward",
     {"grad_output", "output"},
     [](Args a) { return a[0] * (kOne - a[1]) * a[1]; }},
    {"threshold_backward",
     {"grad_output", "self", "threshold"},
     [](Args a) { return a[1].value <= a[2].value ? kZero : a[0]; }},
    {"leaky_relu_backward",
     {"grad_output", "self", "negative_slope"},
     [](Args a) { return a[1].value > 0 ? a[0] : a[0] * a[2]; }},
    {"hardtanh_backward",
     {"grad_output", "self", "min_val", "max_val"},
     [](Args a) { return a[1].value <= a[2].value || a[1].value >= a[3].value ? kZero : a[0]; }},
    {"elu_backward",
     {"grad_output", "alpha", "scale", "input_scale", "is_result", "self_or_result"},
     elu_backward},
    {"gelu_backward",
     {"grad_output", "self"},
     [](Args a) { return gelu_backward(a[0], a[1], by_tanh()); }},
    {"silu_backward",
     {"grad_output", "self"},
     [](Args a) {
       const BoundedValue s = logistic(a[1]);
       return a[0] * s * (kOne + a[1] * (kOne - s));
     }},
    {"mish_backward",
     {"grad_output", "self"},
     [](Args a) {
       const BoundedValue t = mish_inner(a[1]), s = logistic(a[1]);
       return a[0] * (t + a[1] * s * (kOne - t * t));
     }},
    {"hardsigmoid_backward",
     {"grad_output", "self"},
     [](Args a) { return std::fabs(a[1].value) < 3 ? a[0] * rounded_constant(1.0 / 6) : kZero; }},
    {"hardswish_backward",
     {"grad_output", "self"},
     [](Args a) {
       if (a[1].value < -3) return kZero;
       return a[1].value <= 3 ? a[0] * (a[1] / constant(3) + kHalf) : a[0];
     }},
    {"hardshrink_backward",
     {"grad_out", "self", "lambd"},
     [](Args a) { return std::fabs(a[1].value) <= a[2].value ? kZero : a[0]; }},
    {"softshrink_backward",
     {"grad_output", "self", "lambd"},
     [](Args a) { return std::fabs(a[1].value) <= a[2].value ? kZero : a[0]; }},
    {"softplus_backward",
     {"grad_output", "self", "beta", "threshold"},
     [](Args a) { return softplus_backward(a[0], a[1], a[2], a[3]); }},
    {"log_sigmoid_backward",
     {"grad_output", "self", "buffer"},
     [](Args a) {
       const BoundedValue z =
           given(a[2]) ? a[2] : exponential(-absolute(a[1]));  // forward keeps it on the CPU only
       const BoundedValue ratio = z / (kOne + z);
       return a[1].value < 0 ? a[0] * (kOne - ratio) : a[0] * ratio;
     }},
    {"logit_backward",
     {"grad_output", "self"},
     [](Args a) { return a[0] / (a[1] * (kOne - a[1])); },
     true},
    // losses, before their reduction
    {"mse_loss",
     {"self", "target"},
     [](Args a) {
       const BoundedValue d = a[0] - a[1];
       return d * d;
     },
     true},
    {"smooth_l1_loss",
     {"self", "target", "beta"},
     [](Args a) { return smooth_l1(a[0], a[1], a[2]); },
     true},
    {"huber_loss",
     {"self", "target", "delta"},
     [](Args a) { return huber(a[0], a[1], a[2]); },
     true},
    {"binary_cross_entropy",
     {"self", "target", "weight"},
     [](Args a) {
       const BoundedValue loss = (a[1] - kOne) * log_at_least_minus_100(kOne - a[0]) -
                                 a[1] * log_at_least_minus_100(a[0]);
       return given(a[2]) ? loss * a[2] : loss;
     },
     true},
};

}  // namespace

bool given(BoundedValue argument) { return argument.error >= 0; }

std::span<const Formula> formulas() { return kFormulas; }

}  // namespace distgrad::tolerance
