#include "model/group_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distgrad {
namespace {

using testing::ElementsAre;

TEST(GroupOrder, OfRanksOfTheWorld) {
  EXPECT_THAT(reordered({4, 0, 2}, "sorted", 0), ElementsAre(0, 2, 4));
  EXPECT_THAT(reordered({5, 1, 3}, "world_rank", 0), ElementsAre(3, 1, 5)) << "modulo 3: 2, 1, 0";
  EXPECT_THAT(reordered({5, 2, 3}, "world_rank", 0), ElementsAre(5, 2, 3))
      << "two ranks for one place";
  EXPECT_THAT(reordered({2, 0, 1}, "world_root", 1), ElementsAre(2, 1, 0))
      << "rank 1 of the world is the root";
  EXPECT_THAT(reordered({4, 5, 6}, "world_root", 1), ElementsAre(4, 5, 6)) << "no member";
}

}  // namespace
}  // namespace distgrad
