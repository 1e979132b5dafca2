#include "model/gradient_norm.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace distgrad {
namespace {

TEST(GradientNorm, IsTheWholeLoss) {
  EXPECT_EQ(inner_of_gradient_norm(" squared_gradient_norm((y * y).sum()) ").value(),
            "(y * y).sum()");
  EXPECT_FALSE(inner_of_gradient_norm("y.sum()"));
  EXPECT_FALSE(inner_of_gradient_norm("2 * squared_gradient_norm(y)"));
  EXPECT_FALSE(inner_of_gradient_norm(""));
  EXPECT_THROW(inner_of_gradient_norm("squared_gradient_norm(y) * 2"), std::invalid_argument);
  EXPECT_THROW(inner_of_gradient_norm("squared_gradient_norm(y"), std::invalid_argument);
}

}  // namespace
}  // namespace distgrad
