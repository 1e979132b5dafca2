// Operator by operator: forward and backward of each, at random arguments, in every dtype by
// torch's own kernels, lie within the bounds; no operator is without a rule; and the bounds are not
// much larger than what rounding does.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <iostream>
#include <random>

#include "rank/expression/scalar_type.h"
#include "tolerance/error_analysis.h"

namespace distgrad {
namespace {

using Function = at::Tensor (*)(const at::Tensor& x, const at::Tensor& y, const at::Tensor& z);

struct Case {
  const char* name;
  Function f;
};

#define CASE(expression)                                                                        \
  Case {                                                                                        \
#expression, []([[maybe_unused]] const at::Tensor& x, [[maybe_unused]] const at::Tensor& y, \
                    [[maybe_unused]] const at::Tensor& z) -> at::Tensor { return expression; }  \
  }

at::Tensor rows_like(const at::Tensor& x) { return at::arange(x.size(0), at::kLong) % x.size(1); }
at::Tensor indices_like(const at::Tensor& x) {
  return (at::arange(x.numel(), at::kLong) * 3 % x.size(0)).view(x.sizes());
}

// Well-conditioned enough that float32 has something to say.
at::Tensor square(const at::Tensor& x, const at::Tensor& y) {
  return x.slice(0, 0, 4).slice(1, 0, 4) + y.slice(0, 2, 6).slice(1, 1, 5) * 0.5 +
         at::eye(4, x.options().requires_grad(false)) * 6;
}
at::Tensor positive(const at::Tensor& x, const at::Tensor& y) {
  const at::Tensor a = x.slice(0, 0, 4) + y.slice(0, 2, 6) * 0.25;
  return a.matmul(a.t()) + at::diag_embed(at::arange(1, 5, x.options().requires_grad(false)));
}

// x, y: any sign; z: positive. Matrices of one shape.
const Case kCases[] = {
    // arithmetic
    CASE(x + y),
    CASE(x - y),
    CASE(x* y),
    CASE(x / z),
    CASE(x / 3),
    CASE(3 / z),
    CASE(0.1 * x),
    CASE(x + 0.1),
    CASE(1 - x),
    CASE(x * 2.5 - y / 7),
    CASE(at::add(x, y, 0.3)),
    CASE(at::sub(x, y, 0.7)),
    CASE(-x),
    CASE(x.square()),
    CASE(z.reciprocal()),
    CASE(at::addcmul(x, y, z, 0.3)),
    CASE(at::addcdiv(x, y, z + 1, 0.3)),
    CASE(at::lerp(x, y, 0.3)),
    CASE(at::lerp(x, y, z)),
    CASE(at::remainder(x, z + 1)),
    CASE(at::fmod(x, z + 1)),
    CASE(x.floor() + x),
    CASE(x.ceil() + x),
    CASE(x.round() + x),
    CASE(x.trunc() + x),
    CASE(x.frac()),
    CASE(at::floor_divide(x.detach(), z.detach() + 1) + x),
    CASE(at::div(x, z + 1, "trunc") + x),
    CASE(at::div(x, z + 1, "floor") + x),
    CASE(at::positive(x)),
    CASE(x.nan_to_num()),
    CASE(at::ldexp(x, rows_like(x).view({-1, 1}))),
    CASE(at::float_power(z, 2).to(x.scalar_type())),
    CASE(at::true_divide(x, z)),
    CASE(at::dist(x, y)),
    // elementary functions
    CASE(x.exp()),
    CASE(x.exp2()),
    CASE(x.expm1()),
    CASE(z.log()),
    CASE(z.log2()),
    CASE(z.log10()),
    CASE(z.log1p()),
    CASE(x.sin()),
    CASE(x.cos()),
    CASE((x * 0.3).tan()),
    CASE((x.tanh() * 0.9).asin()),
    CASE((x.tanh() * 0.9).acos()),
    CASE(x.atan()),
    CASE(x.sinh()),
    CASE(x.cosh()),
    CASE(x.tanh()),
    CASE(x.asinh()),
    CASE((1.5 + z).acosh()),
    CASE((x.tanh() * 0.9).atanh()),
    CASE(x.erf()),
    CASE(x.erfc()),
    CASE(x.sigmoid()),
    CASE(at::logit(x.sigmoid())),
    CASE(at::logit(x.sigmoid(), 0.01)),
    CASE(z.sqrt()),
    CASE(z.rsqrt()),
    CASE(x.sinc()),
    CASE(at::atan2(x, y)),
    CASE(at::hypot(x, y)),
    CASE(at::xlogy(x, z)),
    CASE(at::special_xlog1py(x, z)),
    CASE(at::special_entr(z)),
    CASE(at::logaddexp(x, y)),
    CASE(at::logaddexp2(x, y)),
    CASE(x.pow(2)),
    CASE(x.pow(3)),
    CASE(x.pow(4)),
    CASE(z.pow(0.5)),
    CASE(z.pow(-1)),
    CASE(z.pow(-2)),
    CASE(z.pow(1.3)),
    CASE(z.pow(-0.7)),
    CASE(z.pow(x)),
    CASE(at::pow(2, x)),
    CASE(at::pow(1.7, x)),
    CASE(z.lgamma()),
    CASE((z + 0.5).digamma()),
    CASE((x.tanh() * 0.9).erfinv()),
    CASE(at::special_expit(x)),
    CASE(at::special_i0(x)),
    CASE(at::cdist(x, y, 1)),
    CASE(at::cdist(x, y, 3)),
    // branches
    CASE(x.abs()),
    CASE(x.sign() + x),
    CASE(x.sgn() * x),
    CASE(at::copysign(x, y)),
    CASE(at::heaviside(x.detach(), z.detach()) + x),
    CASE(at::maximum(x, y)),
    CASE(at::minimum(x, y)),
    CASE(at::fmax(x, y)),
    CASE(at::fmin(x, y)),
    CASE(x.clamp(-0.5, 0.7)),
    CASE(x.clamp_min(0.1)),
    CASE(x.clamp_max(0.1)),
    CASE(at::clamp(x, y, y + z)),
    CASE(at::where(x > y, x, y* z)),
    CASE(x.masked_fill(y > 0, 0.1)),
    CASE(x*(y > 0)),
    CASE(at::where(x > 0, x, 0.3)),
    // activations
    CASE(x.relu()),
    CASE(at::relu6(x)),
    CASE(at::leaky_relu(x, 0.1)),
    CASE(at::threshold(x, 0.2, 0.1)),
    CASE(at::elu(x)),
    CASE(at::selu(x)),
    CASE(at::celu(x, 0.7)),
    CASE(at::gelu(x)),
    CASE(at::gelu(x, "tanh")),
    CASE(at::silu(x)),
    CASE(at::mish(x)),
    CASE(at::hardtanh(x)),
    CASE(at::hardsigmoid(x)),
    CASE(at::hardswish(x)),
    CASE(at::hardshrink(x)),
    CASE(at::softshrink(x)),
    CASE(at::softplus(x)),
    CASE(at::softplus(x, 2, 1)),
    CASE(at::log_sigmoid(x)),
    CASE(at::prelu(x, z.select(0, 0).select(0, 0).view({1}))),
    CASE(at::glu(at::cat({x, y}, 1), 1)),
    CASE(x.tanh().softmax(1)),
    // reductions
    CASE(x.sum()),
    CASE(x.sum(0)),
    CASE(x.sum(1, true) * y),
    CASE(x.mean()),
    CASE(x.mean(0)),
    CASE(x.prod()),
    CASE(x.prod(1)),
    CASE(x.amax(0)),
    CASE(x.amin(1)),
    CASE(x.max()),
    CASE(x.min()),
    CASE(std::get<0>(x.max(1))),
    CASE(std::get<0>(x.min(0))),
    CASE(std::get<0>(at::aminmax(x))),
    CASE(std::get<0>(at::aminmax(x, 1))),
    CASE(x.median()),
    CASE(std::get<0>(x.median(1))),
    CASE(std::get<0>(x.kthvalue(2, 1))),
    CASE(x.cumsum(0)),
    CASE(x.cumprod(1)),
    CASE(std::get<0>(x.cummax(0))),
    CASE(std::get<0>(x.cummin(0))),
    CASE(x.logcumsumexp(1)),
    CASE(x.logsumexp(0)),
    CASE(x.softmax(1)),
    CASE(x.log_softmax(0)),
    CASE((x * 8).softmax(0)),
    CASE((x * 8).log_softmax(1)),
    CASE(x.var()),
    CASE(x.var(1)),
    CASE(x.var(at::OptionalIntArrayRef({0}), std::optional<at::Scalar>(0))),
    CASE(x.std()),
    CASE(std::get<0>(at::var_mean(x, 1))),
    CASE(std::get<0>(at::std_mean(x))),
    CASE((x + 20).var(1)),
    CASE(x.norm()),
    CASE(x.norm(2, 1)),
    CASE(x.norm(1)),
    CASE(x.norm(3)),
    CASE(at::linalg_vector_norm(x)),
    CASE(at::linalg_vector_norm(x, INFINITY, 1)),
    CASE(at::linalg_matrix_norm(x)),
    CASE(at::trace(x.to(at::kDouble)).to(x.scalar_type())),
    CASE(x.nansum()),
    CASE(at::frobenius_norm(x, {0, 1})),
    CASE(at::diff(x)),
    CASE(at::count_nonzero(x) * x),
    CASE(x.nanmean()),
    CASE(at::cov(x)),
    CASE(at::trapezoid(x)),
    CASE(at::cumulative_trapezoid(x)),
    // contractions
    CASE(x.matmul(y.t())),
    CASE(x.t().mm(y)),
    CASE(x.select(0, 0).dot(y.select(0, 0))),
    CASE(x.mv(y.select(0, 0))),
    CASE(at::addmm(x, x.matmul(y.t()), y, 0.5, 0.3)),
    CASE(at::addmv(x.select(1, 0), x, y.select(0, 0))),
    CASE(at::bmm(x.unsqueeze(0), y.t().unsqueeze(0))),
    CASE(at::baddbmm(x.unsqueeze(0), x.matmul(y.t()).unsqueeze(0), y.unsqueeze(0), 1, 0.5)),
    CASE(at::addbmm(x, x.matmul(y.t()).unsqueeze(0), y.unsqueeze(0))),
    CASE(at::outer(x.select(0, 0), y.select(0, 1))),
    CASE(at::addr(x, x.select(1, 0), y.select(0, 1))),
    CASE(at::einsum("ij,kj->ik", {x, y})),
    CASE(at::linear(x, y, z.select(1, 0))),
    CASE(at::kron(x, y)),
    CASE(at::inner(x, y)),
    CASE(at::tensordot(x, y, {0}, {0})),
    CASE(at::linalg_cross(x.slice(1, 0, 3), y.slice(1, 0, 3))),
    CASE(at::vdot(x.select(0, 0), y.select(0, 0))),
    CASE(at::cosine_similarity(x, y)),
    CASE(at::pairwise_distance(x, y)),
    CASE(at::cdist(x, y)),
    CASE(at::chain_matmul({x, y.t(), x})),
    CASE(at::linalg_multi_dot({x, y.t(), x})),
    CASE(at::conv1d(
        x.unsqueeze(0),
        y.slice(0, 0, 3).unsqueeze(0).expand({2, 3, 5}).slice(2, 0, 2).repeat({1, 3, 1}).slice(1, 0,
                                                                                               7))),
    CASE(at::matrix_power(x.matmul(y.t()), 2)),
    // elements moved
    CASE(at::cat({x, y}, 1)),
    CASE(at::stack({x, y}, 1)),
    CASE(x.index_select(0, rows_like(x))),
    CASE(x.gather(0, indices_like(x))),
    CASE(x.flip({0})),
    CASE(x.roll(2, 1)),
    CASE(x.repeat({2, 1})),
    CASE(x.tril()),
    CASE(x.triu()),
    CASE(x.t().contiguous()),
    CASE(at::constant_pad_nd(x, {1, 2}, 0.1)),
    CASE(x.select(0, 1) * x),
    CASE(x.slice(0, 1, 3).sum() * x),
    CASE(x.index({rows_like(x)})),
    CASE(x.masked_select(y > 0)),
    CASE(x.diagonal() * 2),
    CASE(at::diag_embed(x)),
    CASE(x.unfold(1, 2, 1) * 3),
    CASE(std::get<0>(x.sort(1))),
    CASE(std::get<0>(x.topk(2, 1))),
    CASE(x.index_add(0, rows_like(x), y)),
    CASE(x.scatter_add(0, indices_like(x), y)),
    CASE(x.scatter(0, rows_like(x).view({-1, 1}).expand({7, 5}), y)),
    CASE(x.index_copy(0, at::arange(x.size(0), at::kLong), y)),
    CASE(x.index_fill(0, rows_like(x).slice(0, 0, 2), 0.1)),
    CASE(x.index_put({rows_like(x)}, y, true)),
    CASE(at::embedding(x, rows_like(x))),
    CASE(x.expand({3, -1, -1}) * y),
    CASE(at::block_diag({x, y})),
    CASE(x.repeat_interleave(2, 0)),
    CASE(x.split(3, 0)[1] * 2),
    CASE(x.chunk(2, 1)[0] * 2),
    CASE(x.unbind(0)[1] * x),
    CASE(at::rot90(x)),
    CASE(at::tile(x, {2, 2})),
    CASE(x.reshape({-1}) * 2),
    CASE(x.movedim(0, 1) * 2),
    CASE(at::take(x, rows_like(x))),
    CASE(at::select_scatter(x, y.select(0, 0), 0, 1)),
    CASE(at::slice_scatter(x, y.slice(0, 0, 2), 0, 1, 3)),
    CASE(at::diagonal_scatter(x, y.diagonal())),
    CASE(at::masked_scatter(x, y > 0, z)),
    CASE(at::hstack({x, y})),
    CASE(at::vstack({x, y})),
    CASE(at::dstack({x, y})),
    CASE(at::take_along_dim(x, indices_like(x), 0)),
    CASE(at::meshgrid({x.select(0, 0), y.select(0, 0)}, "ij")[0] * 3),
    CASE(at::cartesian_prod({x.select(0, 0), y.select(0, 0)})),
    CASE(at::combinations(x.select(0, 0))),
    CASE(at::diagflat(x.select(0, 0))),
    CASE(at::diag(x.select(0, 0))),
    CASE(at::channel_shuffle(x.view({1, 7, 5, 1}), 7)),
    CASE(at::reflection_pad1d(x.unsqueeze(0), {1, 1})),
    CASE(at::replication_pad1d(x.unsqueeze(0), {1, 1})),
    // normalisations and losses
    CASE(at::layer_norm(x, {x.size(1)}, z.select(0, 0), y.select(0, 0))),
    CASE(at::layer_norm(x + 20, {x.size(1)})),
    CASE(at::rms_norm(x, {x.size(1)}, z.select(0, 0), 1e-6)),
    CASE(at::group_norm(x.unsqueeze(0), 1)),
    CASE(at::group_norm(x.slice(0, 0, 6).unsqueeze(0), 3, z.select(1, 0).slice(0, 0, 6),
                        y.select(1, 0).slice(0, 0, 6))),
    CASE(at::mse_loss(x, y)),
    CASE(at::mse_loss(x, y, at::Reduction::Sum)),
    CASE(at::mse_loss(x, y, at::Reduction::None)),
    CASE(at::l1_loss(x, y)),
    CASE(at::smooth_l1_loss(x, y)),
    CASE(at::huber_loss(x, y, at::Reduction::Mean, 0.7)),
    CASE(at::nll_loss(x, rows_like(x))),
    CASE(at::nll_loss(x, rows_like(x), z.select(0, 0).detach())),
    CASE(at::cross_entropy_loss(x, rows_like(x))),
    CASE(at::cross_entropy_loss(x, rows_like(x), {}, at::Reduction::Mean, -100, 0.1)),
    CASE(at::cross_entropy_loss(x, rows_like(x), {}, at::Reduction::Sum)),
    CASE(at::binary_cross_entropy(x.sigmoid(), (y > 0).to(x.scalar_type()))),
    CASE(at::binary_cross_entropy_with_logits(x, (y > 0).to(x.scalar_type()))),
    CASE(at::kl_div(x.log_softmax(1), y.softmax(1))),
    CASE(at::soft_margin_loss(x, y.sgn().detach())),
    CASE(at::cosine_embedding_loss(x, y, (z.select(1, 0) > 0.5).to(x.scalar_type()) * 2 - 1)),
    CASE(at::margin_ranking_loss(x, y, z.sgn().detach(), 0.1)),
    CASE(at::hinge_embedding_loss(x, y.sgn().detach())),
    CASE(at::triplet_margin_loss(x, y, z)),
    CASE(at::poisson_nll_loss(x, z, true, false, 1e-8, at::Reduction::Mean)),
    CASE(at::conv2d(x.view({1, 1, 7, 5}), y.slice(0, 0, 3).slice(1, 0, 3).view({1, 1, 3, 3}),
                    z.select(0, 0).slice(0, 0, 1))),
    CASE(at::conv3d(x.view({1, 1, 7, 5, 1}),
                    y.slice(0, 0, 2).slice(1, 0, 2).reshape({1, 1, 2, 2, 1}))),
    CASE(at::scatter_reduce(x, 0, indices_like(x), y, "sum")),
    CASE(at::scatter_reduce(x, 0, indices_like(x), y, "mean")),
    CASE(at::scatter_reduce(x, 0, indices_like(x), y, "amax")),
    CASE(at::scatter_reduce(x, 0, indices_like(x), y, "prod", false)),
    CASE(at::quantile(x.to(at::kDouble), 0.3, 1).to(x.scalar_type())),
    CASE(x.deg2rad()),
    CASE(x.rad2deg()),
    CASE(at::pad(x.unsqueeze(0), {1, 1}, "reflect")),
    CASE(at::pad(x.unsqueeze(0), {2, 1}, "circular")),
    CASE(at::pad(x.unsqueeze(0), {1, 2}, "replicate")),
    CASE(at::pad(x, {1, 2}, "constant", 0.1)),
    CASE(x.msort()),
    CASE(x.index_select(0, x.select(1, 0).argsort())),
    CASE(x* at::one_hot(rows_like(x), 5)),
    CASE(at::linalg_vecdot(x, y)),
    CASE(at::polygamma(1, z + 0.1)),
    CASE(at::tril_indices(3, 3).to(x.scalar_type()).sum() * x),
    CASE(x.logit(0.1) * (x > 0)),
    CASE(at::nan_to_num(x / (x * 0), 1, 2, 3)),
    // matrices
    CASE(square(x, y).inverse()),
    CASE(square(x, y).det()),
    CASE(at::logdet(positive(x, y))),
    CASE(std::get<1>(square(x, y).slogdet())),
    CASE(at::linalg_solve(square(x, y), z.slice(0, 0, 4).slice(1, 0, 2))),
    CASE(at::linalg_solve(square(x, y), z.select(1, 0).slice(0, 0, 4))),
    CASE(at::linalg_solve(square(x, y), z.slice(0, 0, 3).slice(1, 0, 4), false)),
    CASE(at::linalg_solve_triangular(square(x, y), z.slice(0, 0, 4), true)),
    CASE(at::linalg_solve_triangular(square(x, y), z.slice(0, 0, 4).t(), false, false)),
    CASE(at::linalg_cholesky(positive(x, y))),
    CASE(std::get<0>(at::linalg_qr(square(x, y)))),
    CASE(std::get<1>(at::linalg_qr(square(x, y)))),
    CASE(at::linalg_eigvalsh(positive(x, y))),
    CASE(std::get<1>(at::linalg_eigh(positive(x, y))).abs()),
    CASE(at::linalg_svdvals(x)),
    CASE(std::get<0>(at::linalg_svd(x, false)).abs()),
    CASE(at::linalg_pinv(x)),
    CASE(at::linalg_matrix_exp(square(x, y) * 0.3)),
    CASE(at::linalg_matrix_power(square(x, y), -2)),
    CASE(at::linalg_matrix_norm(x, "nuc")),
    CASE(at::linalg_matrix_norm(x, 2)),
    // conversions and constructors
    CASE(x.to(at::kFloat) * 3),
    CASE(x.to(at::kFloat).sum()),
    CASE(x + at::linspace(0, 1, 5, x.options().requires_grad(false))),
    CASE(x* at::full({5}, 0.1, x.options().requires_grad(false))),
    CASE(x* at::arange(5, x.options().requires_grad(false))),
    CASE(x + at::eye(7, 5, x.options().requires_grad(false)) * 0.1),
    CASE(at::full_like(x, 0.1) * x),
    CASE(x.new_full({5}, 0.1) * x),
    CASE(x* at::scalar_tensor(0.1, x.options().requires_grad(false))),
    CASE(x* at::arange(0, 1, 0.2, x.options().requires_grad(false))),
    CASE(x* at::logspace(0, 1, 5, 2, x.options().requires_grad(false))),
};

struct Results {
  at::Tensor value;
  std::vector<at::Tensor> gradients;
};

// Value, and gradients for a cotangent of dyadic numbers.
Results evaluate(Function f, const std::vector<at::Tensor>& inputs, at::ScalarType type) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : inputs) leaves.push_back(x.to(type, false, true).requires_grad_());
  Results r;
  r.value = f(leaves[0], leaves[1], leaves[2]);
  if (!r.value.requires_grad()) return r;
  at::Tensor cotangent = at::empty(r.value.sizes(), at::kDouble);
  double* data = cotangent.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < cotangent.numel(); ++i)
    data[i] = static_cast<double>(i % 5 - 2) * 0.5 + 0.25;
  cotangent = cotangent.to(r.value.scalar_type());
  for (at::Tensor& g :
       torch::autograd::grad({r.value}, leaves, {cotangent}, std::nullopt, false, true))
    if (g.defined()) r.gradients.push_back(g);
  return r;
}

class Operators : public testing::TestWithParam<DType> {};

struct Worst {
  double ratio = 0;      // of the observed error to the bound
  double looseness = 0;  // of the bound to the unit roundoff times the value
};

void check(const at::Tensor& observed, const at::Tensor& truth, const at::Tensor& bound,
           const char* what, Worst& worst) {
  const at::Tensor o = observed.to(at::kDouble).contiguous(),
                   t = truth.to(at::kDouble).contiguous(), b = bound.contiguous();
  ASSERT_EQ(o.sizes(), t.sizes());
  for (std::int64_t i = 0; i < o.numel(); ++i) {
    const double x = o.const_data_ptr<double>()[i], y = t.const_data_ptr<double>()[i],
                 e = b.const_data_ptr<double>()[i];
    const double off = x == y || (std::isnan(x) && std::isnan(y)) ? 0 : std::fabs(x - y);
    if (std::isinf(e)) continue;
    EXPECT_LE(off, e) << what << " element " << i << ": " << x << " for " << y;
    if (!(off <= e)) return;
    if (e > 0) worst.ratio = std::max(worst.ratio, off / e);
  }
}

TEST_P(Operators, LieWithinTheirBounds) {
  at::set_num_threads(1);
  const DType dtype = GetParam();
  const at::ScalarType type = scalar_type(dtype);
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  for (const Case& c : kCases) {
    Worst worst;
    int undecided = 0;
    for (int trial = 0; trial < 12; ++trial) {
      std::vector<at::Tensor> inputs;
      for (int k = 0; k < 3; ++k) {
        at::Tensor x = at::empty({7, 5}, at::kDouble);
        double* data = x.mutable_data_ptr<double>();
        for (std::int64_t i = 0; i < x.numel(); ++i) {
          data[i] = normal(random) * (trial % 3 == 0 ? 0.1 : trial % 3 == 1 ? 1 : 3);
          if (k == 2) data[i] = std::fabs(data[i]) + 0.01;
        }
        // Leaves of the dtype; and inexact ones, as in the middle of a program.
        inputs.push_back(x.to(type).to(at::kDouble));
      }
      Results run;
      try {
        run = evaluate(c.f, inputs, type);
      } catch (const c10::Error& error) {
        if (trial == 0)
          std::cout << traits(dtype).name << " " << c.name
                    << ": not run: " << error.what_without_backtrace() << "\n";
        break;
      }
      ErrorAnalysis analysis(dtype);
      const Results truth = evaluate(c.f, inputs, at::kDouble);
      EXPECT_THAT(analysis.unknown_operators(), testing::IsEmpty()) << c.name;
      if (!analysis.unknown_operators().empty()) break;
      if (!analysis.undecided().empty()) {
        if (++undecided == 5)
          std::cout << traits(dtype).name << " " << c.name << ": " << analysis.undecided()[0]
                    << "\n";
        continue;
      }
      check(run.value, truth.value, analysis.bound_of(truth.value), c.name, worst);
      ASSERT_EQ(run.gradients.size(), truth.gradients.size()) << c.name;
      for (std::size_t k = 0; k < run.gradients.size(); ++k)
        check(run.gradients[k], truth.gradients[k], analysis.bound_of(truth.gradients[k]), c.name,
              worst);
      if (HasFailure() && worst.ratio == 0) break;
    }
    if (worst.ratio < 0.02 && dtype != DType::kFloat64 && undecided < 12)
      std::cout << traits(dtype).name << " " << c.name << ": error at most " << worst.ratio
                << " of the bound\n";
    if (undecided > 4)
      std::cout << traits(dtype).name << " " << c.name << ": undecided " << undecided << " of 12\n";
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Operators,
                         testing::Values(DType::kFloat64, DType::kFloat32, DType::kBFloat16,
                                         DType::kFloat16),
                         [](const auto& instance) {
                           return std::string(traits(instance.param).name);
                         });

}  // namespace
}  // namespace distgrad
