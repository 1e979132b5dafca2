// Bounds inverses, determinants, solutions and factorisations. The algorithms solve a problem near
// the given one (backward error dA), whose sensitivity says what that does to the result: Higham,
// Accuracy and Stability of Numerical Algorithms, theorem 9.4 (LU), 10.4 (Cholesky), 8.5
// (triangular systems), 19.4 (Householder QR); LAPACK Users' Guide, chapter 4, for eigenvalues and
// singular values. Matrices of scenarios are small, so this is written for clarity, with ATen
// itself.
#include <ATen/Functions.h>
#include <ATen/TensorIndexing.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

#include "tolerance/rules.h"

namespace distgrad::tolerance {
namespace {

struct Matrices {
  at::Tensor value;  // float64
  at::Tensor error;
};

Matrices read_matrices(OpCall& call, std::string_view name) {
  const BoundedView view = call.required_view(name);
  const Buffer buffer = call.read(view);
  Matrices m{at::empty(c10::IntArrayRef(view.sizes), at::kDouble),
             at::empty(c10::IntArrayRef(view.sizes), at::kDouble)};
  for (std::int64_t i = 0; i < buffer.size; ++i) {
    m.value.mutable_data_ptr<double>()[i] = buffer.value(i);
    m.error.mutable_data_ptr<double>()[i] = buffer.error(i);
  }
  return m;
}

void write_bound(OpCall& call, std::size_t which, const at::Tensor& bound) {
  if (call.results().size() <= which || !is_real_floating(call.result(which)) ||
      call.result(which).numel() == 0)
    return;
  const at::Tensor& result = call.result(which);
  const at::Tensor spread = bound.expand(result.sizes()).contiguous();
  const Buffer out = call.read(call.context().shadows.view_of(result), result.sizes());
  double* errors = call.arena().doubles(out.size);
  const InArithmetic in(call.arithmetic());
  for (std::int64_t i = 0; i < out.size; ++i) {
    const double b = spread.const_data_ptr<double>()[i];
    // It counts twice: the run's and the simulation's rounding are each within the bound, of the
    // dtype or of float64. stored_error adds the entry's own rounding.
    errors[i] = stored_error(
        {out.value(i),
         b >= 0 ? b + call.arithmetic().inner_rounding(std::fabs(out.value(i))) : kInfinity},
        out.value(i));
  }
  call.write_errors(result, out, errors);
}

at::Tensor frobenius(const at::Tensor& a) {
  return a.square().sum(at::IntArrayRef{-2, -1}, true).sqrt();
}
at::Tensor row_sum_norm(const at::Tensor& a) { return std::get<0>(a.sum(-1, true).max(-2, true)); }
// Returns the factor up to which first-order bounds hold if a perturbation of relative size k is
// not small: 1 / (1 - k).
at::Tensor amplification(const at::Tensor& k) {
  return at::where(k.lt(1), (1 - k).reciprocal(), at::full({}, kInfinity, at::kDouble));
}

at::Tensor product_of_factors(const at::Tensor& a) {
  const auto [p, l, u] = at::linalg_lu(a);
  return p.matmul(l.abs()).matmul(u.abs());
}

// Returns the backward error of Gaussian elimination: (A + dA) x = b, |dA| <= 3 gamma_n |L||U|.
at::Tensor elimination_error(OpCall& call, const Matrices& a) {
  const auto n = static_cast<double>(a.value.size(-1));
  return a.error + 3 * call.arithmetic().inner_gamma(n) * product_of_factors(a.value);
}

at::Tensor inverse_of(const at::Tensor& a) { return std::get<0>(at::linalg_inv_ex(a)); }

// ---- systems of equations

void inverse(OpCall& call) {
  const Matrices a = read_matrices(call, call.view("A") ? "A" : "self");
  const at::Tensor x = call.result(0).to(at::kDouble).abs();
  // The factor 2 is since getri also multiplies the factors' inverses (Higham, section 14.3).
  const at::Tensor da = 2 * elimination_error(call, a);
  const at::Tensor k = x.matmul(da);
  write_bound(call, 0, k.matmul(x) * amplification(row_sum_norm(k)));
}

// Notes which matrix LU factors stand for, in case they are passed to lu_solve later.
void remember_factors(OpCall& call, const at::Tensor& factors, const at::Tensor& da) {
  call.context().factors.push_back({factors, da});
}

at::Tensor solution_bound(const at::Tensor& inverse_size, const at::Tensor& da, const at::Tensor& x,
                          const at::Tensor& b_error) {
  const at::Tensor k = inverse_size.matmul(da);
  return (k.matmul(x.abs()) + inverse_size.matmul(b_error)) * amplification(row_sum_norm(k));
}

// Bounds A X = B, or X A = B, which is the same for the transposes.
void solve(OpCall& call) {
  const Matrices a = read_matrices(call, "A");
  Matrices b = read_matrices(call, "B");
  at::Tensor x = call.result(0).to(at::kDouble);
  const bool vector = b.value.dim() == 1 || (b.value.dim() == a.value.dim() - 1);
  const bool left = call.boolean("left", true);
  const at::Tensor da = elimination_error(call, a);
  at::Tensor inverse_size = inverse_of(a.value).abs(), error = da;
  if (vector) {
    x = x.unsqueeze(-1);
    b.error = b.error.unsqueeze(-1);
  } else if (!left) {
    x = x.mT();
    b.error = b.error.mT();
    inverse_size = inverse_size.mT();
    error = da.mT();
  }
  at::Tensor bound = solution_bound(inverse_size, error, x, b.error);
  write_bound(call, 0, vector ? bound.squeeze(-1) : left ? bound : bound.mT());
  if (call.results().size() > 1) remember_factors(call, call.result(1), da);
}

void factorize(OpCall& call) {
  remember_factors(call, call.result(0), elimination_error(call, read_matrices(call, "A")));
}

void lu_solve(OpCall& call) {
  const at::Tensor factors = call.tensor("LU")->to(at::kDouble);
  const at::Tensor* da = nullptr;
  for (const Factors& known : call.context().factors)
    if (known.lu.sizes() == factors.sizes() &&
        at::allclose(known.lu.to(at::kDouble), factors, 1e-10, 1e-12))
      da = &known.error;
  Matrices b = read_matrices(call, "B");
  at::Tensor x = call.result(0).to(at::kDouble);
  const auto [p, l, u] = at::lu_unpack(factors, *call.tensor("pivots"));
  const at::Tensor a = p.matmul(l).matmul(u);
  at::Tensor error = da != nullptr ? *da : elimination_error(call, {a, at::zeros_like(a)});
  at::Tensor inverse_size = inverse_of(a).abs();
  const bool left = call.boolean("left", true);
  if (call.boolean("adjoint", false) != !left) {
    error = error.mT();
    inverse_size = inverse_size.mT();
  }
  if (!left) {
    x = x.mT();
    b.error = b.error.mT();
  }
  const at::Tensor bound = solution_bound(inverse_size, error, x, b.error);
  write_bound(call, 0, left ? bound : bound.mT());
}

void solve_triangular(OpCall& call) {
  const bool upper = call.boolean("upper", true), left = call.boolean("left", true);
  const bool unit = call.boolean("unitriangular", false);
  Matrices a = read_matrices(call, "self"), b = read_matrices(call, "B");
  const auto half = [&](const at::Tensor& t) {
    return upper ? t.triu(unit ? 1 : 0) : t.tril(unit ? -1 : 0);
  };
  a.value = half(a.value);
  a.error = half(a.error);
  if (unit) a.value = a.value + at::eye(a.value.size(-1), at::kDouble);
  at::Tensor x = call.result(0).to(at::kDouble);
  at::Tensor inverse_size = inverse_of(a.value).abs();
  at::Tensor da = a.error + call.arithmetic().inner_gamma(static_cast<double>(a.value.size(-1))) *
                                a.value.abs();
  if (!left) {
    x = x.mT();
    b.error = b.error.mT();
    inverse_size = inverse_size.mT();
    da = da.mT();
  }
  const at::Tensor bound = solution_bound(inverse_size, da, x, b.error);
  write_bound(call, 0, left ? bound : bound.mT());
}

// ---- determinants

// Bounds |det(A + dA) - det A| by Hadamard: the difference of the products of the rows' norms,
// enlarged and not.
at::Tensor determinant_change(const at::Tensor& a, const at::Tensor& da) {
  const at::Tensor rows = a.square().sum(-1).sqrt(), moved = da.square().sum(-1).sqrt();
  return (rows + moved).prod(-1) - rows.prod(-1);
}

at::Tensor relative_change(const at::Tensor& a, const at::Tensor& da) {
  const at::Tensor k = inverse_of(a).abs().matmul(da);
  const at::Tensor trace = k.diagonal(0, -2, -1).sum(-1);
  return at::nan_to_num(trace * amplification(row_sum_norm(k)).squeeze(-1).squeeze(-1), kInfinity);
}

void determinant(OpCall& call) {
  const Matrices a = read_matrices(call, "A");
  const auto n = static_cast<double>(a.value.size(-1));
  const at::Tensor da = elimination_error(call, a);
  const at::Tensor det = call.result(0).to(at::kDouble).abs();
  const at::Tensor relative = at::expm1(relative_change(a.value, da));
  at::Tensor by_relative = at::nan_to_num(det * relative, kInfinity, kInfinity);
  write_bound(call, 0,
              at::minimum(by_relative, determinant_change(a.value, da)) +
                  call.arithmetic().inner_gamma(n) * det);
  if (call.results().size() > 1) remember_factors(call, call.result(1), da);
}

void log_determinant(OpCall& call) {
  const Matrices a = read_matrices(call, "A");
  const at::Tensor da = elimination_error(call, a);
  const at::Tensor change = relative_change(a.value, da);
  const at::Tensor diagonal = std::get<2>(at::linalg_lu(a.value)).diagonal(0, -2, -1).abs();
  const auto n = static_cast<double>(a.value.size(-1));
  const at::Tensor logs = at::nan_to_num(diagonal.log().abs().sum(-1), 0, 0, 0);
  const at::Tensor moved = at::where(change.lt(1), -at::log1p(-change.clamp_max(0.999999)),
                                     at::full({}, kInfinity, at::kDouble));
  write_bound(call, 1, moved + call.arithmetic().inner_gamma(n + 2) * (logs + n));
  // The sign is right unless the matrix may be singular.
  const at::Tensor flat = change.contiguous();
  const Buffer sign = call.read(call.result(0));
  for (std::int64_t i = 0; i < sign.size; ++i)
    if (!(flat.const_data_ptr<double>()[i] < 1)) call.branch({0, 1}, {0, 0});
  call.write(call.result(0), nullptr);
  if (call.results().size() > 2) remember_factors(call, call.result(2), da);
}

// ---- factorisations

void cholesky(OpCall& call) {
  Matrices a = read_matrices(call, call.view("self") ? "self" : "A");
  const bool upper = call.boolean("upper", false);
  at::Tensor l = call.result(0).to(at::kDouble);
  if (upper) l = l.mT();
  const auto n = static_cast<double>(l.size(-1));
  // Cholesky reads only one triangle.
  const at::Tensor read = upper ? a.error.triu() : a.error.tril();
  const at::Tensor error = at::maximum(read, read.mT());
  const at::Tensor da = error + call.arithmetic().inner_gamma(n + 1) * l.abs().matmul(l.abs().mT());
  const at::Tensor inverse_size = inverse_of(l).abs();
  const at::Tensor k = inverse_size.matmul(da).matmul(inverse_size.mT());
  const at::Tensor bound = l.abs().matmul(k.tril()) * amplification(row_sum_norm(k));
  write_bound(call, 0, upper ? bound.mT() : bound);
}

// Returns the norm of the backward error of Householder and of orthogonal iterations: a modest
// multiple of n u |A|.
at::Tensor orthogonal_error(OpCall& call, const Matrices& a) {
  const auto size = static_cast<double>(a.value.size(-1) * a.value.size(-2));
  return frobenius(a.error) + call.arithmetic().inner_gamma(10 * size) * frobenius(a.value);
}

void qr(OpCall& call) {
  const Matrices a = read_matrices(call, "A");
  const at::Tensor da = orthogonal_error(call, a);
  const at::Tensor singular = std::get<1>(at::_linalg_svd(a.value, false, false));
  const at::Tensor smallest = singular.amin(-1, true).unsqueeze(-1),
                   largest = singular.amax(-1, true).unsqueeze(-1);
  const at::Tensor k = std::sqrt(2.0) * da / smallest;
  write_bound(call, 0, k * amplification(k));
  write_bound(call, 1, k * largest * amplification(k));
}

// Returns the smallest distance of each value to another.
at::Tensor gaps(const at::Tensor& values) {
  at::Tensor distance = (values.unsqueeze(-1) - values.unsqueeze(-2)).abs();
  distance = distance + at::diag_embed(at::full_like(values, kInfinity)).nan_to_num(0, kInfinity);
  return std::get<0>(distance.min(-1));
}

void eigenvalues(OpCall& call) {
  const Matrices a = read_matrices(call, "A");
  const at::Tensor da = orthogonal_error(call, a);
  const at::Tensor values = call.result(0).to(at::kDouble);
  write_bound(call, 0, da.squeeze(-1));
  if (call.results().size() < 2 || call.result(1).numel() == 0) return;
  const at::Tensor k = std::sqrt(2.0) * da / gaps(values).unsqueeze(-2);
  write_bound(call, 1, k * amplification(k));
}

void singular_values(OpCall& call) {
  const Matrices a = read_matrices(call, "A");
  const at::Tensor da = orthogonal_error(call, a);
  const at::Tensor values = call.result(1).to(at::kDouble);
  write_bound(call, 1, da.squeeze(-1));
  if (call.result(0).numel() == 0) return;
  // The null space of a rectangular matrix counts as a singular value 0.
  at::Tensor gap = gaps(values);
  if (a.value.size(-1) != a.value.size(-2)) gap = at::minimum(gap, values);
  const at::Tensor k = std::sqrt(2.0) * da.squeeze(-1) / gap;
  const at::Tensor bound = k * amplification(k);
  const auto padded = [](const at::Tensor& b, std::int64_t columns) {
    return columns > b.size(-1) ? at::constant_pad_nd(b, {0, columns - b.size(-1)}, kInfinity) : b;
  };
  write_bound(call, 0, padded(bound, call.result(0).size(-1)).unsqueeze(-2));
  write_bound(call, 2, padded(bound, call.result(2).size(-2)).unsqueeze(-1));
}

// Bounds the pseudo-inverse by Wedin: if the rank stays, it moves by at most (1 + sqrt 5)/2 |X|^2
// |dA|.
void pseudo_inverse(OpCall& call) {
  const Matrices a = read_matrices(call, "self");
  const at::Tensor da = orthogonal_error(call, a);
  const at::Tensor x = std::get<1>(at::_linalg_svd(call.result(0).to(at::kDouble), false, false))
                           .amax(-1, true)
                           .unsqueeze(-1);
  const at::Tensor k = x * da;
  write_bound(call, 0, (1 + std::sqrt(5.0)) / 2 * x * k * amplification(k));
}

// Every coefficient of the series is positive, so |exp(A + dA) - exp A| <= exp(|A| + |dA|) - exp
// |A|. The algorithm has at most eight products and one squaring for each halving of A.
void matrix_exponential(OpCall& call) {
  const Matrices a = read_matrices(call, "self");
  // Torch's 16-bit kernel overflows on harmless arguments (measured, 2.11 and 2.15), so there is no
  // bound.
  if (call.arithmetic().narrows())
    return write_bound(call, 0, at::full({}, kInfinity, at::kDouble));
  const at::Tensor size = at::linalg_matrix_exp(a.value.abs());
  const at::Tensor moved = at::linalg_matrix_exp(a.value.abs() + a.error) - size;
  const double norm = row_sum_norm(a.value.abs()).max().item<double>();
  const double products = 8 + std::max(0.0, std::ceil(std::log2(std::max(norm, 1.0)))) + 1;
  const auto n = static_cast<double>(a.value.size(-1));
  write_bound(call, 0,
              moved.clamp_min(0) + call.arithmetic().inner_gamma(products * (n + 1)) * size);
}

constexpr RuleRow kMatrixRules[] = {
    // operator, rule
    {"linalg_inv_ex", inverse},
    {"_linalg_solve_ex", solve},
    {"linalg_lu_factor_ex", factorize},
    {"linalg_lu_solve", lu_solve},
    {"linalg_solve_triangular", solve_triangular},
    {"_linalg_det", determinant},
    {"_linalg_slogdet", log_determinant},
    {"linalg_cholesky_ex", cholesky},
    {"linalg_qr", qr},
    {"_linalg_eigh", eigenvalues},
    {"_linalg_svd", singular_values},
    {"linalg_pinv", pseudo_inverse},
    {"linalg_matrix_exp", matrix_exponential},
};

}  // namespace

std::span<const RuleRow> matrix_rules() { return kMatrixRules; }

}  // namespace distgrad::tolerance
