#include "tolerance/error_analysis.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distgrad {
namespace {

at::Tensor vec(std::vector<double> v) { return at::tensor(v, at::kDouble); }

TEST(ErrorAnalysis, ExactIntegersStayExact) {
  ErrorAnalysis analysis(DType::kFloat32);
  const at::Tensor x = vec({1, 2, 3}).requires_grad_();
  const at::Tensor y = (at::stack({x * 2, x, x + 1}).sum(0) * x).sum();
  y.backward();
  EXPECT_EQ(analysis.bound_of(y).item<double>(), 0);
  EXPECT_EQ(analysis.bound_of(x.grad()).sum().item<double>(), 0);
  EXPECT_THAT(analysis.unknown_operators(), testing::IsEmpty());
}

}  // namespace
}  // namespace distgrad
