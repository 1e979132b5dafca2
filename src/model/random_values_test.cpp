#include "model/random_values.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <vector>

namespace distgrad {
namespace {

// docs/scenarios.md states these figures.
TEST(RandomValues, AreThoseThatTheFormatPromises) {
  RandomSpec spec;
  const RandomValues integers(spec, "x", 0);
  const double expected[] = {3, -2, 3, 3, -1, 4, 4, 1};
  for (std::uint64_t i = 0; i < 8; ++i) EXPECT_EQ(integers[i], expected[i]) << i;
  spec.kind = RandomSpec::Kind::kNormal;
  EXPECT_EQ(RandomValues(spec, "x", 0)[0], 1.3175883345873185);
}

TEST(RandomValues, FilledAreTheSameBits) {
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 62;
  using Kind = RandomSpec::Kind;
  for (const auto& [kind, low, high] : {std::tuple{Kind::kIntegers, -4.0, 4.0},
                                        {Kind::kIntegers, 7.0, 7.0},
                                        {Kind::kIntegers, 0.0, 1.0},
                                        {Kind::kIntegers, 0.0, 255.0},
                                        {Kind::kIntegers, -3.0, 0x1p26 - 4},
                                        {Kind::kIntegers, 1.0, 0x1p26 - 6},
                                        {Kind::kIntegers, 0.0, 0x1p26},
                                        {Kind::kIntegers, -0x1p52, 0x1p53 - 1},
                                        {Kind::kUniform, -1.0, 3.0},
                                        {Kind::kNormal, 0.0, 0.0}}) {
    RandomSpec spec;
    spec.kind = kind;
    spec.low = low;
    spec.high = high;
    const RandomValues values(spec, "x", 2);
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{13}, kHuge}) {
      std::vector<double> filled(1003);
      values.fill(first, filled);
      for (std::size_t i = 0; i < filled.size(); ++i)
        ASSERT_EQ(filled[i], values[first + i])
            << static_cast<int>(kind) << " " << high << " " << i;
    }
  }
}

TEST(RandomValues, DifferByRankNameAndSeed) {
  RandomSpec spec;
  spec.kind = RandomSpec::Kind::kUniform;
  const double first = RandomValues(spec, "x", 0)[0];
  EXPECT_NE(RandomValues(spec, "x", 1)[0], first);
  EXPECT_NE(RandomValues(spec, "x", -1)[0], first);
  EXPECT_NE(RandomValues(spec, "y", 0)[0], first);
  spec.seed = 1;
  EXPECT_NE(RandomValues(spec, "x", 0)[0], first);
}

}  // namespace
}  // namespace distgrad
