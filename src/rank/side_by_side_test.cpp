#include "rank/side_by_side.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace distgrad {
namespace {

TEST(SideBySide, EachElementIsInOnePiece) {
  for (const std::size_t count : {0, 1, 9, 10, 19, 20, 21, 1003}) {
    std::vector<std::atomic<int>> visits(count);
    side_by_side(count, 10, [&](std::size_t begin, std::size_t size) {
      for (std::size_t i = begin; i < begin + size; ++i) ++visits.at(i);
    });
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(visits[i], 1) << i << " of " << count;
  }
}

}  // namespace
}  // namespace distgrad
