#include "tolerance/error_analysis.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <time.h>

#include <array>
#include <cmath>
#include <iostream>
#include <limits>

namespace distgrad {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

at::Tensor vec(std::vector<double> v) { return at::tensor(v, at::kDouble); }
at::Tensor leaf(std::vector<double> v) { return vec(std::move(v)).requires_grad_(); }

double largest_bound(const ErrorAnalysis& analysis, const at::Tensor& x) {
  const at::Tensor bound = analysis.bound_of(x);
  double largest = 0;
  for (std::int64_t i = 0; i < bound.numel(); ++i)
    largest = std::max(largest, bound.const_data_ptr<double>()[i]);
  return largest;
}

// As the simulator does collectives.
std::vector<at::Tensor> all_reduced(const std::vector<at::Tensor>& x) {
  const at::Tensor total = at::stack(x).sum(0);
  std::vector<std::int64_t> sizes = total.sizes().vec();
  sizes.insert(sizes.begin(), static_cast<std::int64_t>(x.size()));
  return total.unsqueeze(0).expand(sizes).unbind(0);
}

at::Tensor product_over_ranks(const std::vector<at::Tensor>& x) {
  const at::Tensor all = at::stack(x);
  at::Tensor product = x[0].alias();
  for (std::size_t r = 1; r < x.size(); ++r) product = product * x[r];
  return product;
}

constexpr DType kAll[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16};
double unit(DType dtype) { return std::ldexp(1.0, -traits(dtype).significand_bits); }

// ---- other devices

TEST(Gpu, FunctionsGetMoreAndArithmeticTheSame) {
  const auto bounds = [](bool on_gpu) {
    ErrorAnalysis analysis(DType::kFloat32, on_gpu);
    const at::Tensor x = vec({0.5, 0.75, 1.25});  // as float32 holds them
    return std::array<double, 3>{largest_bound(analysis, x * 0.1 + x),
                                 largest_bound(analysis, x.exp()),
                                 largest_bound(analysis, at::erfc(x))};
  };
  const auto cpu = bounds(false), gpu = bounds(true);
  EXPECT_EQ(cpu[0], gpu[0]);
  EXPECT_GT(cpu[0], 0);
  EXPECT_NEAR(gpu[1] / cpu[1], 3.5 / 2, 1e-6);  // ulps of exp
  EXPECT_NEAR(gpu[2] / cpu[2], 5.5 / 4, 1e-6);
  EXPECT_EQ(bounds(false)[1], cpu[1]) << "the next analysis is the CPU's again";
}

struct CudaFunction {
  const char* name;
  at::Tensor (*apply)(const at::Tensor&);
  double single, twice;  // ulps from the correctly rounded result
};

// CUDA C++ Programming Guide 13.0, section 17.1, tables 17 and 18, of what the scenario language
// has.
const CudaFunction kCudaFunctions[] = {
    {"exp", at::exp, 2, 1},
    {"exp2", at::exp2, 2, 1},
    {"expm1", at::expm1, 1, 1},
    {"log", at::log, 1, 1},
    {"log2", at::log2, 1, 1},
    {"log10", at::log10, 2, 1},
    {"log1p", at::log1p, 1, 1},
    {"sin", at::sin, 2, 2},
    {"cos", at::cos, 2, 2},
    {"tan", at::tan, 4, 2},
    {"asin", at::asin, 2, 2},
    {"acos", at::acos, 2, 2},
    {"atan", at::atan, 2, 2},
    {"sinh", at::sinh, 3, 2},
    {"cosh", at::cosh, 2, 1},
    {"tanh", at::tanh, 2, 1},
    {"asinh", at::asinh, 3, 3},
    {"acosh", [](const at::Tensor& x) { return at::acosh(x + 1); }, 4, 3},
    {"atanh", at::atanh, 3, 2},
    {"erf", at::erf, 2, 2},
    {"erfc", at::erfc, 4, 5},
    {"rsqrt", at::rsqrt, 2, 1},
    {"pow", [](const at::Tensor& x) { return at::pow(x, 2.5); }, 4, 2},
};

// Each is at least as far off as NVIDIA allows it to be, an ulp being at least u of the value and
// half of it NVIDIA's to round.
TEST(Gpu, FunctionsMayBeAsFarOffAsNvidiasTablesSay) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64})
    for (const CudaFunction& f : kCudaFunctions) {
      ErrorAnalysis analysis(dtype, /*on_gpu=*/true);
      const at::Tensor y = f.apply(vec({0.625}));
      const double ulp =
          std::ldexp(1.0, std::ilogb(y.item<double>()) + 1 - traits(dtype).significand_bits);
      const double ulps = (dtype == DType::kFloat32 ? f.single : f.twice) + 0.5;
      EXPECT_GE(analysis.bound_of(y).item<double>(), ulps * ulp)
          << f.name << ", " << traits(dtype).name;
    }
}

// ---- what is exact

TEST(Exact, SmallIntegersInEveryDtypeForwardAndBackward) {
  for (const DType dtype : kAll) {
    ErrorAnalysis analysis(dtype);
    const at::Tensor x = leaf({1, -2, 3}), w = leaf({2, 1, -1});
    const auto y = all_reduced({x * 2 - w, x + 1, w * x});
    at::Tensor loss = (y[0] * x).sum() + y[1].sum() * 2 + (y[2] / 4).mean(at::IntArrayRef{}) * 0;
    loss.backward();
    EXPECT_EQ(largest_bound(analysis, loss), 0) << traits(dtype).name;
    EXPECT_EQ(largest_bound(analysis, x.grad()), 0) << traits(dtype).name;
    EXPECT_EQ(largest_bound(analysis, w.grad()), 0) << traits(dtype).name;
    EXPECT_EQ(analysis.describe(x.grad()), "exact: the same bits in any order");
    EXPECT_THAT(analysis.unknown_operators(), IsEmpty());
  }
}

// 256 + 1 - 256 is 1, and in bfloat16 (8 bits) 256 + 1 is 256 in one order.
TEST(Exact, IsJudgedByTheSizeOfTheTermsNotOfTheSum) {
  for (const auto& [dtype, exact] :
       {std::pair{DType::kBFloat16, false}, std::pair{DType::kFloat16, true}}) {
    ErrorAnalysis analysis(dtype);
    const at::Tensor sum = all_reduced({vec({256}), vec({1}), vec({-256})})[0];
    EXPECT_EQ(largest_bound(analysis, sum) == 0, exact) << traits(dtype).name;
  }
}

// 0.5 + 0.5 + 255: in units of 0.5 the terms need nine bits.
TEST(Exact, IsJudgedInTheSmallestUnitAmongTheTerms) {
  ErrorAnalysis analysis(DType::kBFloat16);
  EXPECT_GT(largest_bound(analysis, all_reduced({vec({0.5}), vec({0.5}), vec({255})})[0]), 0);
  EXPECT_EQ(largest_bound(analysis, all_reduced({vec({0.5}), vec({0.5}), vec({127})})[0]), 0);
}

// Autograd adds the three cotangents of x one by one: every order must be exact, not only the one
// it took.
TEST(Exact, FollowsAChainOfAccumulatedCotangents) {
  ErrorAnalysis analysis(DType::kBFloat16);
  const at::Tensor x = leaf({1});
  const at::Tensor loss = x * 256 + (x * 1 + x * -256);
  loss.sum().backward();
  EXPECT_EQ(x.grad().item<double>(), 1);
  EXPECT_GT(largest_bound(analysis, x.grad()), 0);
}

TEST(Exact, ADivisionByThreeIsNotEvenWhereTheQuotientIs) {
  ErrorAnalysis analysis(DType::kFloat32);
  EXPECT_GT(largest_bound(analysis, vec({6}) / 3), 0);  // a GPU multiplies by the rounded 1/3
  EXPECT_EQ(largest_bound(analysis, vec({6}) / 4), 0);
  EXPECT_EQ(largest_bound(analysis, vec({6}) / vec({3})), 0);
}

// 3 * 2.25 * x: exact in this order only as long as all of it is.
TEST(Exact, AProductIsChargedForEveryOrderOfItsFactors) {
  ErrorAnalysis analysis(DType::kFloat32);
  const at::Tensor exact = vec({5}) * vec({7});
  EXPECT_EQ(largest_bound(analysis, exact), 0);
  const double x = 1 + std::ldexp(1.0, -23);
  const double once = largest_bound(analysis, vec({35}) * vec({x}));
  const double twice = largest_bound(analysis, exact * vec({x}));
  EXPECT_GT(twice, 1.9 * once);
}

// ---- how large the bounds are

TEST(Bound, OneProductIsOneRounding) {
  for (const DType dtype : kAll) {
    ErrorAnalysis analysis(dtype);
    const double a = 1 + 2 * unit(dtype) * 3, b = 1 + 2 * unit(dtype) * 5;
    const double bound = largest_bound(analysis, vec({a}) * vec({b}));
    const double expected = unit(dtype) * a * b *
                            (dtype == DType::kFloat64 ? 2 : 1);  // there the simulation rounds too
    EXPECT_GE(bound, expected * 0.999) << traits(dtype).name;
    EXPECT_LE(bound, expected * 1.02) << traits(dtype).name;
  }
}

TEST(Bound, ASumOfRanksRoundsEveryAdditionInTheDtype) {
  ErrorAnalysis analysis(DType::kBFloat16);
  std::vector<at::Tensor> ranks(8, vec({1.0078125}));
  const double bound = largest_bound(analysis, all_reduced(ranks)[0]);
  const double terms = 8 * 1.0078125;
  EXPECT_GE(bound, 7 * unit(DType::kBFloat16) * terms);
  EXPECT_LE(bound, 7.5 * unit(DType::kBFloat16) * terms);
  // A local sum is accumulated in float32 and rounded once.
  EXPECT_LE(largest_bound(analysis, at::full({8}, 1.0078125, at::kDouble).sum()),
            1.01 * unit(DType::kBFloat16) * terms);
}

TEST(Bound, CancellationKeepsTheErrorOfTheTerms) {
  ErrorAnalysis analysis(DType::kFloat32);
  const at::Tensor x = vec({0.1f});
  const at::Tensor y = (x + 1000) - 1000;
  EXPECT_GE(largest_bound(analysis, y), 1000 * unit(DType::kFloat32));
  EXPECT_LE(largest_bound(analysis, y), 1001 * unit(DType::kFloat32));
}

// Sum over ranks, then / 3; a subject may divide the terms, which do not cancel.
TEST(Bound, AnAverageAdmitsDivisionBeforeTheSum) {
  ErrorAnalysis analysis(DType::kFloat32);
  const at::Tensor sum = all_reduced({vec({1000}), vec({-1000}), vec({1})})[0];
  EXPECT_EQ(largest_bound(analysis, sum), 0);
  EXPECT_GE(largest_bound(analysis, sum / 3), 2000.0 / 3 * unit(DType::kFloat32));
}

TEST(Bound, OverflowOfFloat16IsNoBoundAtAll) {
  ErrorAnalysis analysis(DType::kFloat16);
  const at::Tensor y = vec({300}) * vec({300});
  EXPECT_EQ(largest_bound(analysis, y), std::numeric_limits<double>::infinity());
  EXPECT_THAT(analysis.describe(y), HasSubstr("no bound"));
  // Partial sums may overflow where the sum does not.
  EXPECT_TRUE(std::isinf(
      largest_bound(analysis, all_reduced({vec({60000}), vec({60000}), vec({-60000})})[0])));
}

TEST(Bound, ADivisionAtTheEndMayOverflowBeforeIt) {
  for (const double scale : {1.0, 4.0}) {
    ErrorAnalysis analysis(DType::kFloat16);
    analysis.set_backward_scale(scale);
    const at::Tensor x = leaf({1});
    const at::Tensor y = x * 20000;
    y.backward(vec({1}));
    EXPECT_EQ(std::isinf(largest_bound(analysis, x.grad())), scale == 4.0);
    EXPECT_EQ(largest_bound(analysis, y), 0);
  }
}

TEST(Bound, UnderflowOfFloat16CostsHalfASubnormal) {
  ErrorAnalysis analysis(DType::kFloat16);
  const double tiny = std::ldexp(1.0, -13),
               bound = largest_bound(analysis, vec({tiny * 1.5}) * vec({tiny}));
  EXPECT_GE(bound, std::ldexp(1.0, -25));
}

// (4096 a) a is exact in float16; in a a, a subnormal, almost half of what 4096 then multiplies is
// lost.
TEST(Bound, AProductOverRanksAdmitsPartialProductsThatUnderflow) {
  ErrorAnalysis analysis(DType::kFloat16);
  const double a = std::ldexp(1.5, -13);
  const at::Tensor truth = product_over_ranks({vec({4096}), vec({a}), vec({a})});
  const at::Tensor half = vec({a}).to(at::kHalf);
  const double other_order = ((half * half) * vec({4096}).to(at::kHalf)).item<double>();
  const double distance = std::fabs(other_order - truth.item<double>());
  ASSERT_GT(distance, 0.3 * truth.item<double>());
  EXPECT_GE(largest_bound(analysis, truth), distance);
  EXPECT_LE(largest_bound(analysis, truth),
            1.01 * 2 * std::ldexp(4096, -25));  // two roundings of a subnormal, times 4096
  EXPECT_EQ(largest_bound(analysis, (vec({4096}) * vec({a})) * vec({a})),
            0);  // no product over ranks
}

// The cotangent 4096 may come before, between or after the other ranks' factors.
TEST(Bound, SoDoesTheAdjointOfAProduct) {
  ErrorAnalysis analysis(DType::kFloat16);
  const double a = std::ldexp(1.5, -13);
  const at::Tensor x = leaf({1});
  (product_over_ranks({x, vec({a}), vec({a})}) * 4096).backward(vec({1}));
  EXPECT_EQ(x.grad().item<double>(), 4096 * a * a);
  EXPECT_GE(largest_bound(analysis, x.grad()), std::ldexp(0.4375, -12));
}

TEST(Bound, AProductOverRanksMayOverflowInAnotherOrder) {
  const std::vector<double> factors = {300, 0.0009765625, 300};
  std::vector<at::Tensor> x;
  for (const double f : factors) x.push_back(vec({f}));
  ErrorAnalysis analysis(DType::kFloat16);
  EXPECT_TRUE(std::isfinite(largest_bound(analysis, x[0] * x[1] * x[2])));
  EXPECT_TRUE(std::isinf(largest_bound(analysis, product_over_ranks(x))));
}

TEST(Exact, AProductOverRanksWhereNoPartLosesABit) {
  ErrorAnalysis analysis(DType::kFloat16);
  EXPECT_EQ(largest_bound(analysis, product_over_ranks(std::vector<at::Tensor>(8, vec({0.25})))),
            0);
  const double tiny = std::ldexp(1.5, -13);
  EXPECT_EQ(largest_bound(analysis, product_over_ranks({vec({tiny}), vec({tiny}), vec({0})})), 0);
}

TEST(Bound, AnAverageMayOverflowBeforeItsDivision) {
  ErrorAnalysis analysis(DType::kFloat16);
  EXPECT_TRUE(
      std::isinf(largest_bound(analysis, all_reduced({vec({40000}), vec({40000})})[0] / 2)));
}

TEST(Bound, ConstantsThatTheDtypeDoesNotHoldAreRounded) {
  ErrorAnalysis analysis(DType::kBFloat16);
  const at::Tensor tenth = at::tensor({0.1}, at::kDouble);
  EXPECT_GE(largest_bound(analysis, tenth * 1), 0.1 * unit(DType::kBFloat16) * 0.99);
  EXPECT_GE(largest_bound(analysis, at::stack({tenth, tenth})),
            0.1 * unit(DType::kBFloat16) * 0.99);
  // A number that multiplies is kept in float32.
  const double bound = largest_bound(analysis, vec({1}) * 0.1);
  EXPECT_GE(bound, 0.1 * unit(DType::kBFloat16) * 0.99);
  EXPECT_LE(bound, 0.1 * unit(DType::kBFloat16) * 1.01);
}

TEST(Bound, InfinityAndNaNThatAreExactStaySo) {
  ErrorAnalysis analysis(DType::kFloat32);
  const at::Tensor y = vec({1, 0, -1}) / vec({0, 0, 0});
  EXPECT_EQ(largest_bound(analysis, y), 0);
  EXPECT_EQ(largest_bound(analysis, y * 2 + 1), 0);
}

TEST(Bound, AViewSharesTheBoundOfItsBase) {
  ErrorAnalysis analysis(DType::kFloat32);
  at::Tensor x = at::zeros({2, 3}, at::kDouble);
  x.select(0, 1).copy_(vec({1, 2, 3}) / 7);
  const at::Tensor bound = analysis.bound_of(x.t());
  EXPECT_EQ(bound.select(1, 0).sum().item<double>(), 0);
  EXPECT_GT(bound.select(1, 1).min().item<double>(), 0);
}

TEST(Bound, InPlaceOperatorsUseWhatWasThereBefore) {
  ErrorAnalysis analysis(DType::kFloat32);
  at::Tensor x = vec({1, 2, 3}) / 7;
  const double before = largest_bound(analysis, x);
  x.mul_(x);
  EXPECT_GT(largest_bound(analysis, x), before * 0.8);  // 2 (3/7) of it and a rounding
  x.zero_();
  EXPECT_EQ(largest_bound(analysis, x), 0);
}

TEST(Bound, AddBoundIsCarriedOn) {
  ErrorAnalysis analysis(DType::kFloat64);
  const at::Tensor x = vec({1, 2});
  analysis.add_bound(x, vec({0, 0.25}));
  const at::Tensor bound = analysis.bound_of(x * -4);
  EXPECT_EQ(bound.select(0, 0).item<double>(), 0);
  EXPECT_NEAR(bound.select(0, 1).item<double>(), 1, 1e-12);
}

TEST(Bound, RoundingOfIsZeroForWhatTheDtypeHolds) {
  ErrorAnalysis analysis(DType::kFloat32);
  const at::Tensor rounding = analysis.rounding_of(vec({1.0 / 3, 0.25}));
  EXPECT_GE(rounding.select(0, 0).item<double>(),
            std::fabs(1.0 / 3 - static_cast<double>(1.0f / 3)));
  EXPECT_EQ(rounding.select(0, 1).item<double>(), 0);
}

// fl(1/3) as a cotangent from the start, or a division at the end, which rounds the exact 5/3.
TEST(Bound, RoundingOfChargesAFloat64ThatWasRounded) {
  ErrorAnalysis analysis(DType::kFloat64);
  const at::Tensor rounding = analysis.rounding_of(vec({1.0 / 3, 0.25, 0}));
  EXPECT_EQ(rounding.select(0, 0).item<double>(), std::ldexp(1.0 / 3, -53));
  EXPECT_EQ(rounding.select(0, 1).item<double>(), 0);
  EXPECT_EQ(rounding.select(0, 2).item<double>(), 0);
}

TEST(Bound, AConversionRoundsWhatIsInexactOnly) {
  ErrorAnalysis analysis(DType::kFloat64);
  EXPECT_EQ(largest_bound(analysis, vec({0.1}).to(at::kFloat)),
            0);  // the run converts the same value
  EXPECT_GE(largest_bound(analysis, (vec({1}) / 3).to(at::kFloat)), 2 * unit(DType::kFloat32) / 3);
}

TEST(Bound, IsDescribed) {
  ErrorAnalysis analysis(DType::kFloat32);
  EXPECT_EQ(analysis.describe(vec({1.0}) / 3),
            "bound 4e-08 = 2 roundings of float32 (u = 6e-08) on a value of 0.33");
  const std::string sum = analysis.describe(all_reduced({vec({1}) / 3, vec({1}) / 5, vec({1})})[0]);
  EXPECT_THAT(sum, HasSubstr("a sum of 3 terms"));
}

TEST(Bound, TheAnalysisEndsWithItsObject) {
  at::Tensor x = vec({1, 2, 3});
  {
    ErrorAnalysis analysis(DType::kFloat32);
    x = x / 7;
    EXPECT_THROW(ErrorAnalysis second(DType::kFloat32), std::logic_error);
  }
  ErrorAnalysis analysis(DType::kFloat64);
  EXPECT_EQ(largest_bound(analysis, x), 0);
}

// ---- branches

TEST(Undecided, NamesThePlaceTheElementAndTheValues) {
  ErrorAnalysis analysis(DType::kFloat32);
  analysis.set_place("step y");
  const at::Tensor x = at::stack({vec({1, 3}), vec({1, 6}) / 3 * 3});
  at::maximum(x.select(0, 0), x.select(0, 1));
  ASSERT_EQ(analysis.undecided().size(), 1);
  EXPECT_THAT(analysis.undecided()[0],
              testing::MatchesRegex("step y: maximum\\(…\\) element \\[0\\]: 1 and 1 lie within "
                                    "their rounding error [0-9.e-]+"));
}

TEST(Undecided, ExactTiesAreDecided) {
  ErrorAnalysis analysis(DType::kFloat32);
  const at::Tensor x = leaf({0, 2, 2});
  const at::Tensor y = x.relu() + at::maximum(x, vec({0, 2, 1})) + x.abs() + x.clamp(0, 2) +
                       at::where(x.ge(2), x, -x) + x.amax();
  y.sum().backward();
  EXPECT_THAT(analysis.undecided(), IsEmpty());
}

TEST(Undecided, ValuesFurtherApartThanTheirErrorsAreDecided) {
  ErrorAnalysis analysis(DType::kFloat32);
  const at::Tensor x = vec({1, 2, -3}) / 7;
  x.relu();
  x.abs();
  x.amax();
  x.sort();
  x.gt(0.1);
  EXPECT_THAT(analysis.undecided(), IsEmpty());
}

TEST(Undecided, EveryKindOfBranch) {
  using Branch = void (*)(const at::Tensor& x);
  const std::pair<const char*, Branch> branches[] = {
      {"relu", [](const at::Tensor& x) { x.relu(); }},
      {"abs", [](const at::Tensor& x) { x.abs(); }},
      {"clamp", [](const at::Tensor& x) { x.clamp(-5, 0); }},
      {"gt", [](const at::Tensor& x) { x.gt(0); }},
      {"eq", [](const at::Tensor& x) { x.eq(0); }},
      {"sign", [](const at::Tensor& x) { x.sign(); }},
      {"floor", [](const at::Tensor& x) { x.floor(); }},
      {"round", [](const at::Tensor& x) { (x + 0.5).round(); }},
      {"maximum", [](const at::Tensor& x) { at::maximum(x, x * 0); }},
      {"amax",
       [](const at::Tensor& x) {
         at::cat({x, x * 0}).amax();
       }},
      {"max",
       [](const at::Tensor& x) {
         at::cat({x, x * 0}).max(0);
       }},
      {"argmax",
       [](const at::Tensor& x) {
         at::cat({x, x * 0}).argmax();
       }},
      {"sort",
       [](const at::Tensor& x) {
         at::cat({x, x * 0}).sort();
       }},
      {"topk",
       [](const at::Tensor& x) {
         at::cat({x, x * 0}).topk(1);
       }},
      {"median",
       [](const at::Tensor& x) {
         at::cat({x, x * 0, x - 1}).median();
       }},
      {"leaky_relu", [](const at::Tensor& x) { at::leaky_relu(x); }},
      {"hardtanh", [](const at::Tensor& x) { at::hardtanh(x + 1); }},
      {"norm", [](const at::Tensor& x) { x.norm(); }},
      {"fmod", [](const at::Tensor& x) { at::fmod(x + 3, 3); }},
      {"_local_scalar_dense", [](const at::Tensor& x) { x.item<double>(); }},
      {"_to_copy", [](const at::Tensor& x) { x.to(at::kLong); }},
      {"equal", [](const at::Tensor& x) { at::equal(x, x * 0); }},
  };
  for (const auto& [name, branch] : branches) {
    ErrorAnalysis analysis(DType::kFloat32);
    const at::Tensor third = vec({1}) / 3;
    branch(third * 3 - 1);  // 0, give or take a rounding
    ASSERT_THAT(analysis.undecided(), testing::Not(IsEmpty())) << name;
  }
}

// The masks of backward compare a maximum with itself.
TEST(Undecided, BackwardDoesNotRepeatWhatForwardDecided) {
  ErrorAnalysis analysis(DType::kFloat32);
  const at::Tensor x = leaf({1, 2, 4});
  const at::Tensor y = (x / 7).amax() + (x / 7).max() + (x / 7).norm() + (x / 7).relu().sum();
  y.backward();
  EXPECT_THAT(analysis.undecided(), IsEmpty());
}

TEST(Unknown, AnOperatorWithoutARuleIsNamedAndEstimated) {
  ErrorAnalysis analysis(DType::kFloat32);
  const at::Tensor y = at::renorm((vec({1, 2, 3}) / 7).view({1, 3}), 2, 0, 0.1);
  EXPECT_THAT(analysis.unknown_operators(), ElementsAre("aten::renorm"));
  EXPECT_GT(largest_bound(analysis, y), 0);
}

// ---- cost

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A small program of four ranks, about 150 operators with backward: the analysis is run once a
// case.
TEST(Cost, OfASmallProgram) {
  at::set_num_threads(1);
  const auto program = [](double scale) {
    std::vector<at::Tensor> leaves, y;
    for (int r = 0; r < 4; ++r) leaves.push_back(leaf({1.0 * scale, 2.0 * scale + r, 3.0 * scale}));
    for (const at::Tensor& x : leaves) y.push_back(x * 2 + 1);
    y = all_reduced(y);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (std::size_t r = 0; r < y.size(); ++r)
      loss = loss + ((y[r] * leaves[r]) + y[r].relu()).sum();
    loss.backward();
    return leaves[0].grad();
  };
  for (const double scale : {1.0, 0.7}) {
    const auto seconds = [&](bool analysed) {
      const double start = cpu_seconds();
      constexpr int kRepeats = 200;
      for (int i = 0; i < kRepeats; ++i) {
        if (analysed) {
          ErrorAnalysis analysis(DType::kFloat32);
          const at::Tensor g = program(scale);
          EXPECT_EQ(largest_bound(analysis, g) == 0, scale == 1.0);
        } else {
          program(scale);
        }
      }
      return (cpu_seconds() - start) / kRepeats;
    };
    seconds(true);
    const double plain = seconds(false), analysed = seconds(true);
    std::cout << (scale == 1.0 ? "exact" : "inexact") << " program: " << plain * 1e6
              << " us, analysed " << analysed * 1e6 << " us\n";
    EXPECT_LT(analysed - plain, 2e-3);  // several times what it takes
  }
}

}  // namespace
}  // namespace distgrad
