#include "model/ranks_text.h"

#include <gtest/gtest.h>

#include <vector>

namespace distgrad {
namespace {

TEST(RanksText, NamesARunByItsEnds) {
  EXPECT_EQ(ranks_text(std::vector<int>{3}), "rank 3");
  EXPECT_EQ(ranks_text(std::vector<int>{0, 1}), "ranks 0, 1");
  EXPECT_EQ(ranks_text(std::vector<int>{0, 1, 2, 3}), "ranks 0-3");
  EXPECT_EQ(ranks_text(std::vector<int>{0, 2, 3}), "ranks 0, 2, 3");
}

}  // namespace
}  // namespace distgrad
