#include "model/distance.h"

#include <gtest/gtest.h>

namespace distgrad {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Distance, OfWhatIsTheSameIsZero) {
  EXPECT_EQ(distance(kNan, kNan), 0);
  EXPECT_EQ(distance(kInfinity, kInfinity), 0);
  EXPECT_EQ(distance(-0.0, 0.0), 0);
}

TEST(Distance, IsInfiniteFromNanAndInfinity) {
  EXPECT_EQ(distance(1, kNan), kInfinity);
  EXPECT_EQ(distance(kNan, kInfinity), kInfinity);
  EXPECT_EQ(distance(-kInfinity, kInfinity), kInfinity);
  EXPECT_EQ(distance(1, -2), 3);
}

TEST(Distance, SameValuesHaveOneShape) {
  EXPECT_TRUE(same_values(Array({2}, {1, kNan}), Array({2}, {1, kNan})));
  EXPECT_FALSE(same_values(Array({2}, {1, kNan}), Array({2}, {kNan, 1})));
  EXPECT_FALSE(same_values(Array({2, 1}, {1, 2}), Array({1, 2}, {1, 2})));
}

TEST(Distance, FurthestIsTheFirstOfThoseFurthestApart) {
  const Furthest found = furthest_apart(Array({4}, {1, 2, 5, 9}), Array({4}, {1, 4, 3, 8}));
  EXPECT_EQ(found.element, 1);
  EXPECT_EQ(found.distance, 2);
  EXPECT_EQ(furthest_apart(Array({1}, {kNan}), Array({1}, {kNan})).distance, 0);
}

}  // namespace
}  // namespace distgrad
