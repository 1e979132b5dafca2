#include "model/mesh_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distgrad {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(MeshOrder, TheLastAxisVariesFromProcessToProcess) {
  EXPECT_THAT(places_in_order({{"dp", 2}, {"tp", 3}}, {"tp", "dp"}), ElementsAre(0, 2, 4, 1, 3, 5));
  EXPECT_THAT(places_in_order({{"a", 2}, {"b", 2}, {"c", 2}}, {"b", "c", "a"}),
              ElementsAre(0, 2, 4, 6, 1, 3, 5, 7));
}

TEST(MeshOrder, ItsOwnOrderAndThatOfOtherAxesChangeNothing) {
  EXPECT_THAT(places_in_order({{"dp", 2}, {"tp", 3}}, {"dp", "tp"}), IsEmpty());
  EXPECT_THAT(places_in_order({{"dp", 2}, {"tp", 3}}, {"tp", "cp"}), IsEmpty());
  EXPECT_THAT(places_in_order({{"dp", 2}, {"tp", 3}}, {"tp"}), IsEmpty());
  EXPECT_THAT(places_in_order({{"dp", 2}, {"tp", 3}}, {"tp", "tp"}), IsEmpty());
  EXPECT_THAT(places_in_order({}, {"tp"}), IsEmpty());
}

}  // namespace
}  // namespace distgrad
