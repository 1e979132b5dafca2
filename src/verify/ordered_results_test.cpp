#include "verify/ordered_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace distgrad {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Listener : public VerifyListener {
 public:
  void on_result(CaseResult r) override { ids.push_back(r.which.id); }
  void on_invalid(InvalidFile) override {}
  void on_progress(std::size_t done, std::size_t failed) override { progress = {done, failed}; }

  std::vector<std::string> ids;
  std::pair<std::size_t, std::size_t> progress;
};

CaseResult result(const std::string& id, bool as_expected = true) {
  CaseResult r;
  r.which.id = id;
  r.as_expected = as_expected;
  return r;
}

TEST(OrderedResults, AreHandedOnInTheOrderOfTheCases) {
  Listener listener;
  OrderedResults results(false, listener);
  results.finish(2, result("c"));
  results.finish(1, result("b", false));
  EXPECT_THAT(listener.ids, IsEmpty());
  results.finish(0, result("a"));
  EXPECT_THAT(listener.ids, ElementsAre("a", "b", "c"));
  results.report_progress();
  EXPECT_EQ(listener.progress, std::pair(std::size_t{3}, std::size_t{1}));
  EXPECT_FALSE(results.is_over());
}

TEST(OrderedResults, AnInvalidCaseHoldsNobodyBack) {
  Listener listener;
  OrderedResults results(false, listener);
  results.finish(1, result("b"));
  results.finish(0, std::nullopt);
  EXPECT_THAT(listener.ids, ElementsAre("b"));
}

TEST(OrderedResults, FailFastEndsBehindTheFirstFailureInTheOrderOfTheCases) {
  Listener listener;
  OrderedResults results(true, listener);
  results.finish(2, result("c", false));
  results.finish(3, result("d"));
  EXPECT_FALSE(results.is_over());
  results.finish(0, result("a"));
  results.finish(1, result("b", false));
  EXPECT_TRUE(results.is_over());
  results.hand_on_rest();
  EXPECT_THAT(listener.ids, ElementsAre("a", "b"));
}

TEST(OrderedResults, FailFastEndsBehindTheFirstFailureAlsoWhereTheRunEndsEarly) {
  Listener listener;
  OrderedResults results(true, listener);
  results.finish(1, result("b"));
  results.finish(2, result("c", false));
  results.finish(3, result("d", false));
  results.hand_on_rest();
  EXPECT_THAT(listener.ids, ElementsAre("b", "c"));
}

TEST(OrderedResults, WhatWasFinishedIsNotLostWhereTheRunEndsEarly) {
  Listener listener;
  OrderedResults results(false, listener);
  results.finish(0, result("a"));
  results.finish(3, result("d"));
  results.finish(2, std::nullopt);
  results.hand_on_rest();
  EXPECT_THAT(listener.ids, ElementsAre("a", "d"));
}

}  // namespace
}  // namespace distgrad
