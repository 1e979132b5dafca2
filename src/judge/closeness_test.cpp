#include "judge/closeness.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace distgrad {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Within, NaNEqualsNaNInfinityItselfAndMinusZeroZero) {
  EXPECT_TRUE(within(kNaN, kNaN, 0));
  EXPECT_TRUE(within(kInf, kInf, 0));
  EXPECT_TRUE(within(-0.0, 0.0, 0));
  EXPECT_FALSE(within(kInf, -kInf, 1e300));
  EXPECT_FALSE(within(kNaN, 1, 1e300));
  EXPECT_FALSE(within(1, kNaN, 1e300));
  EXPECT_FALSE(within(kInf, 1, 1e300));
}

TEST(Within, ABoundIsInclusiveAndZeroMeansEqual) {
  EXPECT_TRUE(within(1.5, 1, 0.5));
  EXPECT_FALSE(within(1.5, 1, 0.499));
  EXPECT_FALSE(within(std::nextafter(1.0, 2), 1, 0));
}

TEST(Within, AnInfiniteBoundAcceptsAnythingAndNaNIsNoBound) {
  EXPECT_TRUE(within(kNaN, 1, kInf));
  EXPECT_TRUE(within(kInf, 1, kInf));
  EXPECT_FALSE(within(2, 1, kNaN));
  EXPECT_TRUE(within(1, 1, kNaN));
}

TEST(RoundedTo, GivesTheNearestValueOfTheDtype) {
  EXPECT_EQ(rounded_to(DType::kFloat64, 0.1), 0.1);
  EXPECT_EQ(rounded_to(DType::kFloat32, 0.1), static_cast<double>(0.1F));
  EXPECT_EQ(rounded_to(DType::kBFloat16, 0.1), 0.10009765625);
  EXPECT_EQ(rounded_to(DType::kFloat16, 0.1), 0.0999755859375);
  EXPECT_EQ(rounded_to(DType::kBFloat16, -257), -256);  // a tie, to even
  EXPECT_EQ(rounded_to(DType::kBFloat16, 259), 260);
}

TEST(RoundedTo, KnowsSubnormalsAndOverflow) {
  EXPECT_EQ(rounded_to(DType::kFloat16, 0x1p-24), 0x1p-24);
  EXPECT_EQ(rounded_to(DType::kFloat16, 0x1.8p-25), 0x1p-24);
  EXPECT_EQ(rounded_to(DType::kFloat16, 0x1p-26), 0);
  EXPECT_EQ(rounded_to(DType::kFloat16, 65504), 65504);
  EXPECT_EQ(rounded_to(DType::kFloat16, 65519), 65504);
  EXPECT_EQ(rounded_to(DType::kFloat16, 65520), kInf);
  EXPECT_EQ(rounded_to(DType::kFloat32, -1e39), -kInf);
  EXPECT_EQ(rounded_to(DType::kFloat32, 3.4028234663852886e38), 3.4028234663852886e38);
  EXPECT_EQ(rounded_to(DType::kBFloat16, 1e38), 9.9692099683868690e37);
}

TEST(Difference, FindsTheFirstElementAndTheWorstBound) {
  const std::vector<double> wanted = {1, 2, 0, 4}, bounds = {0.5, 0.25, 1, 0.125};
  const std::vector<double> observed = {1.4, 3, -0.5, 6};
  const auto bound_at = [&](std::size_t i) { return bounds[i]; };
  const Difference d = difference(observed, wanted, bound_at);
  EXPECT_FALSE(d.equal);
  EXPECT_EQ(d.first, 1);
  EXPECT_EQ(d.max_abs_error, 2);
  EXPECT_EQ(d.max_rel_error, 0.5);  // the element that is 0 and within its bound has none
  EXPECT_EQ(d.bound, 0.125);
}

TEST(Difference, TheBoundIsThatOfAnElementThatDiffers) {
  const std::vector<double> wanted = {100, 1}, observed = {105, 1.5};
  const auto bound_at = [&](std::size_t i) { return i == 0 ? 10 : 0.1; };
  const Difference d = difference(observed, wanted, bound_at);
  EXPECT_EQ(d.first, 1);
  EXPECT_EQ(d.max_abs_error, 5);
  EXPECT_EQ(d.bound, 0.1);
}

TEST(Difference, OfEqualValuesReportsTheLargestBound) {
  const std::vector<double> values = {1, kNaN, kInf, -0.0}, wanted = {1, kNaN, kInf, 0.0};
  const Difference d = difference(values, wanted, [](std::size_t i) { return i == 2 ? 3.0 : 1.0; });
  EXPECT_TRUE(d.equal);
  EXPECT_EQ(d.first, -1);
  EXPECT_EQ(d.max_abs_error, 0);
  EXPECT_EQ(d.bound, 3);
}

TEST(Difference, NaNAndInfinityWhereANumberIsWantedAreInfinitelyOff) {
  const std::vector<double> wanted = {1, 1}, observed = {1, kNaN};
  const Difference d = difference(observed, wanted, [](std::size_t) { return 1e300; });
  EXPECT_FALSE(d.equal);
  EXPECT_EQ(d.first, 1);
  EXPECT_EQ(d.max_abs_error, kInf);
  EXPECT_EQ(d.max_rel_error, kInf);
}

TEST(Difference, NaNIsNoBoundAndAnInfiniteOneAcceptsAnything) {
  const std::vector<double> wanted = {1}, observed = {2}, nothing = {kNaN};
  EXPECT_FALSE(difference(observed, wanted, [](std::size_t) { return kNaN; }).equal);
  EXPECT_TRUE(difference(observed, wanted, [](std::size_t) { return kInf; }).equal);
  EXPECT_TRUE(difference(nothing, wanted, [](std::size_t) { return kInf; }).equal);
}

TEST(Difference, OfNothingIsNone) {
  EXPECT_TRUE(difference({}, {}, no_slack).equal);
  EXPECT_EQ(difference({}, {}, no_slack).bound, 0);
}

TEST(Difference, AddedKeepsTheFirstAndTheWorst) {
  const std::vector<double> wanted = {1}, near = {1.5}, far = {3}, same = {1};
  const auto loose = [](std::size_t) { return 0.75; };
  Difference sum;
  sum.add(difference(near, wanted, loose));
  EXPECT_TRUE(sum.equal);
  EXPECT_EQ(sum.bound, 0.75);
  sum.add(difference(far, wanted, [](std::size_t) { return 0.5; }));
  EXPECT_FALSE(sum.equal);
  EXPECT_EQ(sum.first, 0);
  EXPECT_EQ(sum.max_abs_error, 2);
  EXPECT_EQ(sum.bound, 0.5);
  sum.add(difference(same, wanted, loose));
  EXPECT_EQ(sum.bound, 0.5);
}

}  // namespace
}  // namespace distgrad
