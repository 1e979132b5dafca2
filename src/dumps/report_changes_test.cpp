#include "dumps/report_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distgrad::dumps {
namespace {

using Status = ReportedCase::Status;
using testing::HasSubstr;

ReportChanges changes(std::vector<ReportedCase> before, std::vector<ReportedCase> after) {
  return changes_between({"a.json", std::move(before)}, {"b.json", std::move(after)});
}

TEST(ReportChanges, WorseIsNewlyFailingOrVanished) {
  EXPECT_TRUE(
      changes({{"x", "match", Status::kGood}}, {{"x", "mismatch", Status::kBad}}).is_worse());
  EXPECT_TRUE(
      changes({{"x", "skipped", Status::kSkipped}}, {{"x", "mismatch", Status::kBad}}).is_worse());
  EXPECT_TRUE(changes({}, {{"x", "mismatch", Status::kBad}}).is_worse());
  EXPECT_TRUE(changes({{"x", "match", Status::kGood}}, {}).is_worse());
  EXPECT_FALSE(
      changes({{"x", "mismatch", Status::kBad}}, {{"x", "mismatch", Status::kBad}}).is_worse());
  EXPECT_FALSE(
      changes({{"x", "mismatch", Status::kBad}}, {{"x", "match", Status::kGood}}).is_worse());
  EXPECT_FALSE(changes({}, {{"x", "match", Status::kGood}}).is_worse());
  EXPECT_FALSE(
      changes({{"x", "match", Status::kGood}}, {{"x", "skipped", Status::kSkipped}}).is_worse());
}

TEST(ReportChanges, EachCaseIsInOnePlace) {
  const ReportChanges c = changes({{"fixed", "mismatch", Status::kBad},
                                   {"other", "mismatch: scaled", Status::kBad},
                                   {"quiet", "match", Status::kGood},
                                   {"same", "match", Status::kGood}},
                                  {{"fixed", "match", Status::kGood},
                                   {"other", "mismatch: own-slice", Status::kBad},
                                   {"quiet", "skipped", Status::kSkipped},
                                   {"same", "match", Status::kGood},
                                   {"new", "match", Status::kGood}});
  EXPECT_EQ(
      c.fixed.size() + c.changed.size() + c.no_longer_run.size() + c.added.size() + c.unchanged,
      5u);
  EXPECT_EQ(c.still_failing, 1u);
  const std::string text = changes_text(c, false);
  EXPECT_THAT(text,
              HasSubstr("diff  other   changed: mismatch: own-slice; was mismatch: scaled\n"));
  EXPECT_THAT(text, HasSubstr("skip  quiet   no longer run: skipped; was match\n"));
  EXPECT_THAT(
      text,
      HasSubstr("1 no longer run, 1 changed, 1 fixed, 1 new, 1 unchanged, 1 still failing.\n"));
}

}  // namespace
}  // namespace distgrad::dumps
