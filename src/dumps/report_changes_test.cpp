#include "dumps/report_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dumps/comparison_cases.h"

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
  EXPECT_EQ(c.fixed.size() + c.changed.size() + c.no_longer_run.size() + c.added.size() +
                c.unchanged.size(),
            5u);
  EXPECT_EQ(c.still_failing, 1u);
  const std::string text = changes_text(c, {});
  EXPECT_THAT(text,
              HasSubstr("diff  other   changed: mismatch: own-slice; was mismatch: scaled\n"));
  EXPECT_THAT(text, HasSubstr("skip  quiet   no longer run: skipped; was match\n"));
  EXPECT_THAT(
      text,
      HasSubstr("1 no longer run, 1 changed, 1 fixed, 1 new, 1 unchanged, 1 still failing.\n"));
}

ReportedCase of_subject(const std::string& subject, const std::string& outcome, Status status) {
  return {"a.json:subject=" + subject, outcome, status, subject, "a.json", "a.json"};
}

TEST(ReportChanges, OfDifferentSubjectsTheSameCasesAreCompared) {
  const ReportChanges c = changes({of_subject("torch_nn", "match", Status::kGood)},
                                  {of_subject("in_place", "mismatch", Status::kBad)});
  EXPECT_THAT(changes_text(c, {}),
              testing::StartsWith("FAIL  a.json:subject=in_place   newly failing: mismatch; was "
                                  "match\n\nOf different subjects: torch_nn before, in_place "
                                  "now.\n1 newly failing, 0 unchanged"));
  const ReportChanges one_left = changes({of_subject("torch_nn", "match", Status::kGood),
                                          of_subject("in_place", "match", Status::kGood)},
                                         {of_subject("in_place", "match", Status::kGood)});
  EXPECT_EQ(one_left.vanished.size(), 1u);
  const ReportChanges two_of_one = changes({of_subject("torch_nn", "match", Status::kGood),
                                            of_subject("reference", "match", Status::kGood)},
                                           {of_subject("in_place", "match", Status::kGood)});
  EXPECT_EQ(two_of_one.vanished.size(), 2u) << "which of them is it to be compared with?";
}

TEST(ReportChanges, ANarrowTerminalGetsTheOutcomeOnALineOfItsOwn) {
  const ReportChanges c =
      changes({{"folder/file.json:subject=in_place,world_size=3", "match", Status::kGood}}, {});
  EXPECT_THAT(changes_text(c, {.full = false, .width = 60}),
              HasSubstr("world_size=3\n      vanished; was match\n"));
}

TEST(ReportChanges, AsAReportWhatBecameWorseIsWrong) {
  const ComparisonCases cases = changes_cases(changes({{"broke", "match", Status::kGood},
                                                       {"gone", "match", Status::kGood},
                                                       {"still", "mismatch", Status::kBad},
                                                       {"quiet", "match", Status::kGood},
                                                       {"mended", "mismatch", Status::kBad}},
                                                      {{"broke", "mismatch", Status::kBad},
                                                       {"still", "mismatch", Status::kBad},
                                                       {"quiet", "skipped", Status::kSkipped},
                                                       {"mended", "match", Status::kGood}}));
  const Summary& sum = cases.report.summary;
  EXPECT_EQ(sum.not_as_expected, 2) << "broke and gone";
  EXPECT_EQ(sum.as_expected, 2) << "still and mended";
  EXPECT_EQ(sum.skipped, 1);
  EXPECT_EQ(cases.report.cases[0].why, "newly failing: mismatch; it was match");
  EXPECT_EQ(cases.report.cases[1].why, "vanished; it was match");
  ReportedCase hangs{"h", "error: hang", Status::kBad};
  hangs.verdict = Verdict::kError;
  hangs.error = RankError{.kind = ErrorKind::kHang, .step = {}, .message = "not done after 30 s"};
  const CaseResult broke =
      changes_cases(changes({{"h", "match", Status::kGood}}, {hangs})).report.cases[0];
  EXPECT_EQ(broke.error->message, "Newly failing: it was match. not done after 30 s");
  EXPECT_TRUE(broke.findings.empty()) << "no cause is known";
  const ReportedCase on_three{.id = "c", .outcome = "match", .world_size = 3};
  EXPECT_EQ(changes_cases(changes({}, {on_three})).report.cases[0].which.world_size, 3);
}

}  // namespace
}  // namespace distgrad::dumps
