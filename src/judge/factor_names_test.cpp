// A factor is explained by what there is, by all of it, and by nothing else.
#include "judge/factor_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distgrad {
namespace {

using testing::HasSubstr;
constexpr auto kAxis = NamedCount::Kind::kAxis;
constexpr auto kOther = NamedCount::Kind::kOther;

constexpr double kWide = 1e-10, kNarrow = 0.02;

const FactorNames names({{"dp", 2, kAxis},
                         {"tp", 2, kAxis},
                         {"ep", 4, kAxis},
                         {"ranks", 8, kOther},
                         {"micro-batches", 4, kOther}},
                        false);

TEST(FactorNames, EverythingOfThatSizeIsNamed) {
  EXPECT_EQ(names.name(2, kWide).of("the reference"),
            "2 times the reference (2 = the size of dp or tp)");
  EXPECT_EQ(names.name(0.25, kWide).of("the reference"),
            "1/4 of the reference (4 = the size of ep, or the number of micro-batches)");
  EXPECT_EQ(names.name(-8, kWide).of("the reference"),
            "minus 8 times the reference (8 = the number of ranks)");
  EXPECT_TRUE(names.name(0.25, kWide).is_size);
}

TEST(FactorNames, WhatIsThereTwiceIsNamedOnce) {
  const FactorNames groups(
      {{"ranks of a process group", 2, kOther}, {"ranks of a process group", 2, kOther}}, false);
  EXPECT_EQ(groups.name(2, kWide).of("the reference"),
            "2 times the reference (2 = the number of ranks of a process group)");
}

TEST(FactorNames, ProductsOnlyWhereNothingElseFits) {
  EXPECT_EQ(
      names.name(64, kWide).of("the reference"),
      "64 times the reference (nothing here is 64; 64 = 8 x 8, with 8 = the number of ranks)");
  EXPECT_EQ(
      names.name(1.0 / 16, kWide).of("the reference"),
      "1/16 of the reference (nothing here is 16; 16 = 2 x 8 or 4 x 4, with 2 = the size of dp or "
      "tp, 4 = the size of ep, or the number of micro-batches, 8 = the number of ranks)");
  // Two ranks and nothing else: the micro-batches were not counted, and 8 is nothing that there is.
  const FactorNames two({{"ranks", 2, kOther}}, false);
  EXPECT_EQ(two.name(8, kWide).of("the reference"), "8 times the reference");
  EXPECT_FALSE(two.name(8, kWide).is_size);
  EXPECT_THAT(two.name(1.0 / 4, kWide).of("the reference"),
              HasSubstr("nothing here is 4; 4 = 2 x 2, with 2 = the number of ranks"));
}

TEST(FactorNames, OtherConstantsAreWhatTheyAre) {
  EXPECT_EQ(names.name(1.5, kWide).of("the reference"), "3/2 times the reference");
  EXPECT_EQ(names.name(-1, kWide).of("the reference"), "the negative of the reference");
  EXPECT_EQ(names.name(0.137137, kWide).of("the reference"), "0.137 times the reference");
  EXPECT_FALSE(names.name(0.137137, kWide).known);
  EXPECT_EQ(names.name(65536, kWide).of("the reference"),
            "65536 times the reference (2^16: a loss scale that was not taken out again?)");
}

TEST(FactorNames, ARatioThatIsNearByChanceIsNotNamed) {
  EXPECT_EQ(names.name(11.3569, 1e-4).of("the reference"), "11.4 times the reference");  // 159/14
  EXPECT_EQ(names.name(159.0 / 14, kWide).of("the reference"), "159/14 times the reference");
  EXPECT_EQ(names.name(3.3, 1e-4).of("the reference"), "33/10 times the reference");
}

TEST(FactorNames, WhatIsNotOneIsNotPrintedAsOne) {
  EXPECT_EQ(names.name(1.0004, kWide).of("the reference"), "1.0004 times the reference");
  EXPECT_EQ(names.name(0.9999991, kWide).of("the reference"), "0.999999 times the reference");
}

TEST(FactorNames, NarrowDtypesShowNoMoreThanTheyCan) {
  const FactorNames narrow({{"ranks", 4, kOther}}, true);
  EXPECT_EQ(narrow.name(0.248697, kNarrow).of("the reference"),
            "1/4 of the reference (4 = the number of ranks)");
  EXPECT_EQ(narrow.name(1.99664, kNarrow).value, 2);
  EXPECT_EQ(narrow.name(1.99664, kNarrow).of("the reference"), "2 times the reference");
  EXPECT_FALSE(narrow.name(0.437, kNarrow).known);  // 7/16, or anything
  EXPECT_EQ(names.name(0.4375, kWide).of("the reference"), "7/16 of the reference");
}

}  // namespace
}  // namespace distgrad
