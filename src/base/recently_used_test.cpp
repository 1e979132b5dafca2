#include "base/recently_used.h"

#include <gtest/gtest.h>

namespace distgrad {
namespace {

TEST(RecentlyUsed, WhatIsAskedForStaysAndTheRestGoes) {
  RecentlyUsed<int> map(10);
  map.put("kept", 7);
  for (int i = 0; i < 1000; ++i) {
    map.put(std::to_string(i), i);
    ASSERT_NE(map.find("kept"), nullptr) << i;
    EXPECT_EQ(*map.find("kept"), 7);
    EXPECT_LE(map.size(), 20u);
  }
  EXPECT_EQ(map.find("0"), nullptr);
  EXPECT_EQ(*map.find("999"), 999);
}

}  // namespace
}  // namespace distgrad
