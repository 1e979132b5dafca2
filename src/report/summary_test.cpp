#include "report/summary.h"

#include <gtest/gtest.h>

#include "report/sample_cases.h"

namespace distgrad {
namespace {

using sample::disputed;
using sample::report_of;

TEST(Summary, EachCaseCountsOnce) {
  CaseResult expected_skip = sample::skipped("s.json", "", "not offered");
  expected_skip.as_expected = true;
  CaseResult strict_skip = sample::skipped("s.json", "", "not offered");
  strict_skip.as_expected = false;
  const Summary sum =
      report_of({sample::match("a.json"), sample::in_place_mismatch(), sample::hang("h.json", ""),
                 sample::skipped("s.json", "", "no GPU"), disputed(), expected_skip, strict_skip})
          .summary;
  EXPECT_EQ(sum.cases, 7);
  EXPECT_EQ(sum.as_expected, 2);
  EXPECT_EQ(sum.not_as_expected, 2);
  EXPECT_EQ(sum.broken, 1);
  EXPECT_EQ(sum.skipped, 1);
  EXPECT_EQ(sum.disputed, 1);
}

TEST(ExitCode, TheHighestOfOneToThreeWins) {
  EXPECT_EQ(exit_code_of(report_of({sample::match("a.json")}), false), ExitCode::kAsExpected);
  Report report = report_of({sample::match("a.json"), sample::in_place_mismatch()});
  EXPECT_EQ(exit_code_of(report, false), ExitCode::kNotAsExpected);
  report.invalid.push_back({});
  EXPECT_EQ(exit_code_of(report, false), ExitCode::kUserError);
  Report broken = report_of({sample::hang("h.json", ""), sample::in_place_mismatch()});
  broken.invalid.push_back({});
  EXPECT_EQ(exit_code_of(broken, false), ExitCode::kBroken);
}

TEST(ExitCode, NothingRan) {
  const Report skips = report_of({sample::skipped("s.json", "", "no GPU")});
  EXPECT_EQ(exit_code_of(skips, false), ExitCode::kNothingRan);
  EXPECT_EQ(exit_code_of(skips, true), ExitCode::kAsExpected);
  EXPECT_EQ(exit_code_of(report_of({}), false), ExitCode::kNothingRan);
  EXPECT_EQ(exit_code_of(report_of({skips.cases[0], disputed()}), false), ExitCode::kAsExpected);
  CaseResult expected_skip = skips.cases[0];
  expected_skip.as_expected = true;
  EXPECT_EQ(exit_code_of(report_of({expected_skip}), false), ExitCode::kAsExpected);
}

TEST(ExitCode, AnInvalidFileAloneIsTheUsersError) {
  Report report = report_of({});
  report.invalid.push_back({});
  EXPECT_EQ(exit_code_of(report, true), ExitCode::kUserError);
}

}  // namespace
}  // namespace distgrad
