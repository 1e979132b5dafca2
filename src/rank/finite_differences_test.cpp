#include "rank/finite_differences.h"

#include <gtest/gtest.h>

#include <cmath>

namespace distgrad {
namespace {

using Answer = FiniteDifferences::Answer;

Answer answer(const std::function<double(double)>& along, double derivative, double scale) {
  return finite_differences(along, derivative, scale).answer;
}

TEST(FiniteDifferencesTest, SmoothFunctions) {
  const auto f = [](double t) { return std::exp(1.5 + t) + std::sin(3 * t); };
  const double slope = std::exp(1.5) + 3;
  EXPECT_EQ(answer(f, slope, slope), Answer::kAgree);
  EXPECT_EQ(answer(f, slope * 1.0001, slope), Answer::kDisagree);
  EXPECT_EQ(answer(f, 0, 0), Answer::kDisagree);
}

TEST(FiniteDifferencesTest, WhatCancelledIsHeldToItsTerms) {
  const auto f = [](double t) { return 1e6 * std::exp(t) - 1e6 * std::exp(t) * (1 + 1e-9 * t); };
  EXPECT_EQ(answer(f, -1e-3, 2e6), Answer::kAgree);
  EXPECT_EQ(answer(f, 20, 2e6), Answer::kDisagree);
}

TEST(FiniteDifferencesTest, ARealisticRoundingIsNoDisagreement) {
  const auto f = [](double t) { return (1e9 + t) - 1e9 + 5; };
  EXPECT_NE(answer(f, 1, 1), Answer::kDisagree);
}

TEST(FiniteDifferencesTest, AConstantAgreesWithZero) {
  EXPECT_EQ(answer([](double) { return 7.0; }, 0, 0), Answer::kAgree);
  EXPECT_EQ(answer([](double) { return 7.0; }, 1e-3, 1e-3), Answer::kDisagree);
}

TEST(FiniteDifferencesTest, KinksAndJumpsAreNotJudged) {
  for (const double derivative : {0.0, 0.5, 1.0}) {
    EXPECT_NE(answer([](double t) { return std::max(t, 0.0); }, derivative, 1), Answer::kDisagree);
    EXPECT_NE(answer([](double t) { return t < 1e-6 ? 0.0 : 1.0; }, derivative, 1),
              Answer::kDisagree);
  }
  const auto steep = [](double t) { return 1e4 * std::sin(t + 1) + std::max(t, 0.0); };
  EXPECT_EQ(answer(steep, 1e4 * std::cos(1.0) + 1, 1e4), Answer::kNotAsked)
      << "a small kink beside large slopes";
  EXPECT_EQ(answer([](double t) { return std::sqrt(t); }, 1, 1), Answer::kNotAsked)
      << "not a number behind 0";
}

TEST(FiniteDifferencesTest, WhatIsNotFiniteIsNotJudged) {
  EXPECT_EQ(answer([](double t) { return t; }, NAN, 1), Answer::kNotAsked);
  EXPECT_EQ(answer([](double t) { return t; }, 1, INFINITY), Answer::kNotAsked);
}

}  // namespace
}  // namespace distgrad
