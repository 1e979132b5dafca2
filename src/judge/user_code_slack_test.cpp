#include "judge/user_code_slack.h"

#include <gtest/gtest.h>

#include <cmath>

namespace distgrad {
namespace {

constexpr double kU = 0x1p-53;

Simulation exact(double gradient) {
  Simulation s;
  s.losses = {2, -4};
  s.loss_bounds = {0, 0};
  s.gradients = {{{.input = "x", .parts = {Array::scalar(gradient), Array::scalar(0)}}},
                 {{.input = "x", .parts = {Array::scalar(1), Array::scalar(-8)}}}};
  s.bounds = {{.input = "x", .parts = {Array::scalar(0), Array::scalar(INFINITY)}}};
  s.steps = {{"y", {Array::scalar(3), Array::scalar(-5)}, {Array::scalar(0), Array::scalar(1)}}};
  return s;
}

TEST(RoundingRoom, UsersCodeHasSomeRoundingsOfTheLargestElement) {
  const Simulation s = with_user_code_slack(exact(2), "all_reduce=python:f.py:g", DType::kFloat64);
  EXPECT_EQ(s.bounds[0].parts[0]->values()[0], 64 * kU * 8) << "what cancels under one objective";
  EXPECT_TRUE(std::isinf(s.bounds[0].parts[1]->values()[0]));
  EXPECT_EQ(user_code_slack(exact(2), 0, "python:f.py:g", DType::kFloat64), 64 * kU * 8);
  EXPECT_EQ(user_code_slack(exact(2), 0, "reference", DType::kFloat64), 0);
  EXPECT_EQ(s.steps[0].bound[0].values()[0], 64 * kU * 5);
  EXPECT_EQ(s.steps[0].bound[1].values()[0], 1 + 64 * kU * 5);
  EXPECT_EQ(s.loss_bounds[0], 64 * 64 * kU * 4);
  const Simulation coarse = with_user_code_slack(exact(2), "library:l.so:a::b", DType::kBFloat16);
  EXPECT_EQ(coarse.bounds[0].parts[0]->values()[0], 8 * 0x1p-8 * 8);
}

TEST(RoundingRoom, WhatIsBuiltInIsComparedBitByBit) {
  for (const char* subject :
       {"torch_nn", "reference", "python:reference", "python:in_place@checkpoint",
        "all_gather=python:in_place+all_reduce=megatron"}) {
    EXPECT_FALSE(is_code_of_users(subject)) << subject;
    EXPECT_EQ(
        with_user_code_slack(exact(2), subject, DType::kFloat64).bounds[0].parts[0]->values()[0],
        0);
  }
  for (const char* subject : {"python:torch.distributed.nn.functional", "python:f.py@checkpoint",
                              "all_gather=python:reference+copy=library:l.so:a::b"})
    EXPECT_TRUE(is_code_of_users(subject)) << subject;
}

TEST(RoundingRoom, BoundsThatWereNotAskedForStayAbsent) {
  Simulation s = exact(2);
  s.bounds.clear();
  s.steps[0].bound.clear();
  const Simulation same = with_user_code_slack(s, "python:f.py:all_reduce", DType::kFloat64);
  EXPECT_TRUE(same.bounds.empty() && same.steps[0].bound.empty());
  EXPECT_EQ(same.loss_bounds[0], 0);
}

}  // namespace
}  // namespace distgrad
