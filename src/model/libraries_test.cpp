#include "model/libraries.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace distgrad {
namespace {

using enum CollectiveKind;

TEST(Libraries, EveryRowNamesASubjectAndARule) {
  for (const LibraryRow& row : library_rows()) {
    EXPECT_TRUE(std::ranges::any_of(subjects(), [&](const auto& s) {
      return s.name == row.subject;
    })) << row.subject;
    EXPECT_TRUE(std::ranges::any_of(backward_rules(), [&](const auto& r) {
      return r.name == row.rule;
    })) << row.rule;
    if (!traits(row.kind).takes_op) {
      EXPECT_EQ(row.ops, "") << row.subject << " " << traits(row.kind).name;
    }
  }
}

TEST(Libraries, WhatARowDoesNotNameIsNotOffered) {
  EXPECT_EQ(rule_of("simclr", kAllGather, ReduceOp::kSum), "own_slice");
  EXPECT_EQ(rule_of("simclr", kAllReduce, ReduceOp::kSum), std::nullopt);
  EXPECT_EQ(rule_of("fvcore", kAllReduce, ReduceOp::kMax), std::nullopt);
  EXPECT_EQ(rule_of("simclr", kCopy, ReduceOp::kSum), "adjoint");
  EXPECT_EQ(rule_of("megatron", kCopy, ReduceOp::kSum), "sum_to_all");
  EXPECT_EQ(rule_of("reference", kAllReduce, ReduceOp::kMax), "native");
}

TEST(Libraries, ARowMayDependOnTheVersion) {
  EXPECT_EQ(rule_of("torch_functional", kAllReduce, ReduceOp::kMax, "2.11.0"), "raises");
  EXPECT_EQ(rule_of("torch_functional", kAllReduce, ReduceOp::kMax, "2.15.0"), "adjoint");
  EXPECT_EQ(rule_of("torch_functional", kAllReduce, ReduceOp::kProduct, "2.15.0"), "raises");
}

TEST(Libraries, AMutantOffersEverything) {
  EXPECT_EQ(rule_of("mutant:y=next_slice", CollectiveKind::kAllReduce, ReduceOp::kMax), "native");
}

}  // namespace
}  // namespace distgrad
