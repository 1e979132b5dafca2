#include "model/random_values.h"

#include <gtest/gtest.h>

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
