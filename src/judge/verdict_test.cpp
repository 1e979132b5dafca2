#include "judge/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "judge/sample_programs.h"

namespace distgrad {
namespace {

using sample::scalars;
using testing::HasSubstr;
using testing::IsEmpty;

// A finished case of two ranks and one input, that matches until a test changes it.
struct Finished {
  Case which;
  Program program = sample::world(2);
  Simulation simulation;
  DistributedRun run;
  CaseComparison comparison;
  std::vector<Finding> findings;

  Finished() {
    program.steps = {sample::all_reduce("y")};
    simulation.losses = {1, 1};
    simulation.gradients = {{{.input = "x", .parts = scalars({40, 60})}}};
    simulation.bounds = {{.input = "x", .parts = scalars({0, 0})}};
    simulation.exact = true;
    run.ranks.resize(2);
    comparison.gradients.resize(1);
    comparison.gradients[0].input = "x";
    comparison.gradients[0].observed_by_rank = scalars({40, 60});
    comparison.distributed_losses = {1, 1};
  }

  void differ(FindingName finding) {
    comparison.gradients[0].equal = false;
    comparison.gradients[0].observed_by_rank = scalars({20, 30});
    findings = {{finding, "all_reduce", "y", {0, 1}, 0.5, "..."}};
  }
  CaseResult judged(bool strict = false) {
    return judge(which, {&simulation, &program, &run, &comparison, findings, "", 0.5}, strict);
  }
  CaseResult judged_without_comparison(bool strict = false) {
    return judge(which, {&simulation, &program, &run, nullptr, {}, "", 0.5}, strict);
  }
};

TEST(Judge, AMatchIsExpectedByDefault) {
  const CaseResult r = Finished().judged();
  EXPECT_EQ(r.verdict, Verdict::kMatch);
  EXPECT_EQ(r.as_expected, true);
  EXPECT_EQ(r.elapsed_s, 0.5);
  EXPECT_EQ(r.distributed_losses.size(), 2);
}

TEST(Judge, AMatchShowsNothingWhereEveryGradientIsNaN) {
  Finished f;
  f.comparison.gradients[0].truth_by_rank = scalars({NAN, NAN});
  const CaseResult r = f.judged();
  ASSERT_EQ(r.findings.size(), 1U);
  EXPECT_EQ(r.findings[0].rule.text(), "vacuous");
  EXPECT_TRUE(is_vacuous(r));
  EXPECT_EQ(r.as_expected, true);
  EXPECT_EQ(f.judged(/*strict=*/true).as_expected, false);
  f.comparison.gradients[0].truth_by_rank = scalars({NAN, 1});
  EXPECT_THAT(f.judged().findings, IsEmpty());
}

TEST(Judge, AMatchThatLacksAnUnusedInputsGradientShowsSomething) {
  Finished f;
  f.findings = {{"no-gradient", "", "", {0, 1}, std::nullopt, "z got no gradient"}};
  EXPECT_FALSE(is_vacuous(f.judged()));
  EXPECT_EQ(f.judged(/*strict=*/true).as_expected, true);
}

TEST(Judge, AMismatchIsNotUnlessTheFileSaysSo) {
  Finished f;
  f.differ("identity-backward");
  CaseResult r = f.judged();
  EXPECT_EQ(r.verdict, Verdict::kMismatch);
  EXPECT_EQ(r.as_expected, false);
  EXPECT_FALSE(r.broken);
  EXPECT_EQ(r.why, "expected match, got mismatch: identity-backward");
  f.which.expected.verdict = Verdict::kMismatch;
  r = f.judged();
  EXPECT_EQ(r.as_expected, true);
  EXPECT_THAT(r.why, IsEmpty());
}

TEST(Judge, AMatchWhereAMismatchIsExpectedIsNotAsExpected) {
  Finished f;
  f.which.expected.verdict = Verdict::kMismatch;
  EXPECT_EQ(f.judged().as_expected, false);
}

TEST(Judge, TheFindingMustBeAmongTheFindings) {
  Finished f;
  f.differ("identity-backward");
  f.findings.push_back({"scaled", "", "", {}, 0.5, "..."});
  f.which.expected.verdict = Verdict::kMismatch;
  f.which.expected.finding = "scaled";
  EXPECT_EQ(f.judged().as_expected, true);
  f.which.expected.finding = "own-slice";
  EXPECT_EQ(f.judged().as_expected, false);
  EXPECT_EQ(f.judged().why, "expected the finding own-slice, found identity-backward and scaled");
}

TEST(Judge, TheCollectiveIsThatOfTheFinding) {
  Finished f;
  f.differ("identity-backward");
  f.findings.push_back({"own-slice", "all_gather", "z", {}, {}, "..."});
  f.which.expected = {.verdict = Verdict::kMismatch,
                      .finding = "identity-backward",
                      .collective = "all_reduce",
                      .message = "",
                      .gradients = {},
                      .when = {}};
  EXPECT_EQ(f.judged().as_expected, true);
  f.which.expected.collective = "all_gather";
  EXPECT_EQ(f.judged().as_expected, false);
  f.which.expected.finding = {};
  EXPECT_EQ(f.judged().as_expected, true);
}

TEST(Judge, PinnedGradientsAreTheObservedOnesByRank) {
  Finished f;
  f.differ("identity-backward");
  f.which.expected.verdict = Verdict::kMismatch;
  f.which.expected.gradients = {{"x", scalars({20, 30})}};
  EXPECT_EQ(f.judged().as_expected, true);
  f.which.expected.gradients = {{"x", scalars({20, 31})}};
  EXPECT_EQ(f.judged().as_expected, false);
  EXPECT_EQ(f.judged().why, "expected the gradient of x on rank 1 to be 31, it is 30");
  f.which.world_size_overridden = true;
  EXPECT_EQ(f.judged().as_expected, true);
  EXPECT_THAT(f.judged().notes.at(0), HasSubstr("not checked"));
  f.which.world_size_overridden = false;
  f.which.expected.gradients = {{"nope", scalars({20, 31})}};
  EXPECT_EQ(f.judged().as_expected, false);
  f.which.expected.gradients = {{"x", scalars({20})}};
  EXPECT_EQ(f.judged().as_expected, false);
}

TEST(Judge, APinnedFigureIsDecimalTextOfTheDtype) {
  Finished f;
  f.differ("scaled");
  f.which.expected.verdict = Verdict::kMismatch;
  f.comparison.gradients[0].observed_by_rank = scalars({1 / 3.0, 20});
  f.which.expected.gradients = {{"x", scalars({0.333333333333333, 20})}};
  EXPECT_EQ(f.judged().as_expected, false);
  f.which.expected.gradients = {{"x", scalars({0.33333333333333337, 20})}};
  EXPECT_EQ(f.judged().as_expected, true);
  f.which.expected.gradients = {{"x", scalars({1 / 3.0, std::nextafter(20, 21)})}};
  EXPECT_EQ(f.judged().as_expected, true);  // so many digits cannot be meant exactly
  f.comparison.gradients[0].observed_by_rank = scalars({1 / 3.0, std::nextafter(20, 21)});
  f.which.expected.gradients = {{"x", scalars({1 / 3.0, 20})}};
  EXPECT_EQ(f.judged().as_expected, false);
  f.which.dtype = DType::kFloat16;
  f.comparison.gradients[0].observed_by_rank = scalars({0.0999755859375, 20});
  f.which.expected.gradients = {{"x", scalars({0.1, 20})}};
  EXPECT_EQ(f.judged().as_expected, true);
}

TEST(Judge, APinnedGradientMayBeMissing) {
  Finished f;
  f.differ("no-gradient");
  f.which.expected.verdict = Verdict::kMismatch;
  f.comparison.gradients[0].observed_by_rank = {Array::scalar(1), std::nullopt};
  f.which.expected.gradients = {{"x", {Array::scalar(1), std::nullopt}}};
  EXPECT_EQ(f.judged().as_expected, true);
  f.which.expected.gradients = {{"x", scalars({1, 0})}};
  EXPECT_EQ(f.judged().as_expected, false);
  EXPECT_THAT(f.judged().why, HasSubstr("to be 0, it is no gradient"));
}

TEST(Judge, AnErrorIsBrokenUnlessExpected) {
  Finished f;
  f.run.error =
      RankError{ErrorKind::kException, 1, "y", "NotImplementedError: no backward for all_reduce"};
  CaseResult r = f.judged_without_comparison();
  EXPECT_EQ(r.verdict, Verdict::kError);
  EXPECT_EQ(r.as_expected, false);
  EXPECT_TRUE(r.broken);
  f.which.expected = {.verdict = Verdict::kError,
                      .finding = {},
                      .collective = "all_reduce",
                      .message = "no backward",
                      .gradients = {},
                      .when = {}};
  r = f.judged_without_comparison();
  EXPECT_EQ(r.as_expected, true);
  EXPECT_FALSE(r.broken);
  f.which.expected.message = "timed out";
  r = f.judged_without_comparison();
  EXPECT_EQ(r.as_expected, false);
  EXPECT_TRUE(r.broken);
  f.which.expected.message = "";
  f.which.expected.collective = "broadcast";
  EXPECT_EQ(f.judged_without_comparison().as_expected, false);
}

TEST(Judge, AMatchWhereAnErrorIsExpectedIsNotBroken) {
  Finished f;
  f.which.expected.verdict = Verdict::kError;
  EXPECT_EQ(f.judged().as_expected, false);
  EXPECT_FALSE(f.judged().broken);
}

TEST(Judge, ASkippedCaseIsNeitherUnlessTheFileExpectsIt) {
  Finished f;
  f.run.ranks[1].skipped = "simclr does not offer all_reduce";
  CaseResult r = f.judged_without_comparison();
  EXPECT_EQ(r.verdict, Verdict::kSkipped);
  EXPECT_FALSE(r.as_expected);
  EXPECT_EQ(r.why, "simclr does not offer all_reduce");
  EXPECT_EQ(f.judged_without_comparison(true).as_expected, false);
  EXPECT_EQ(f.judged_without_comparison(true).why, "simclr does not offer all_reduce");
  EXPECT_FALSE(f.judged_without_comparison(true).broken);
  f.which.expected.verdict = Verdict::kSkipped;
  f.which.expected.message = "does not offer";
  EXPECT_EQ(f.judged_without_comparison().as_expected, true);
  f.which.expected.message = "no GPU";
  EXPECT_EQ(f.judged_without_comparison().as_expected, false);
}

TEST(Judge, ADifferenceWithAnUndecidedBranchIsDisputed) {
  Finished f;
  f.simulation.undecided = {"relu of step z, rank 1", "max of step y"};
  EXPECT_EQ(f.judged().verdict, Verdict::kMatch);  // what equals the truth matches
  f.differ("tie");
  CaseResult r = f.judged();
  EXPECT_EQ(r.verdict, Verdict::kDisputed);
  EXPECT_FALSE(r.as_expected);
  EXPECT_THAT(r.findings, IsEmpty());
  EXPECT_THAT(r.why, HasSubstr("relu of step z, rank 1, and 1 more"));
  EXPECT_EQ(f.judged(true).as_expected, false);
  f.which.expected.verdict = Verdict::kDisputed;
  EXPECT_EQ(f.judged().as_expected, true);
}

TEST(Judge, WrongForwardValuesGuardsAndTruthAreMismatchesToo) {
  Finished forward, program, truth;
  forward.comparison.forward.emplace();
  program.comparison.program.emplace();
  truth.comparison.truth.emplace();
  EXPECT_EQ(forward.judged().verdict, Verdict::kMismatch);
  EXPECT_EQ(program.judged().verdict, Verdict::kMismatch);
  EXPECT_EQ(truth.judged().verdict, Verdict::kMismatch);
}

TEST(Judge, AnOverriddenObjectiveExpectsAMatch) {
  Finished f;
  f.which.expected.verdict = Verdict::kMismatch;
  f.which.objective_overridden = true;
  const CaseResult r = f.judged();
  EXPECT_EQ(r.as_expected, true);
  EXPECT_THAT(r.notes.at(0), HasSubstr("the objective was overridden"));
}

TEST(Judge, WithoutRanksASubjectsExpectationSaysNothing) {
  Finished f;
  f.which.expected.verdict = Verdict::kMismatch;
  f.which.expected.finding = "identity-backward";
  const auto simulated = [&] {
    return judge(f.which, {&f.simulation, &f.program, nullptr, &f.comparison, f.findings, "", 0},
                 false);
  };
  EXPECT_EQ(simulated().as_expected, true);
  f.comparison.truth.emplace();
  f.findings = {{"truth", "", "", {}, {}, "..."}};
  EXPECT_EQ(simulated().as_expected, false);
  f.which.expected.finding = "truth";
  EXPECT_EQ(simulated().as_expected, true);
}

TEST(Judge, WarningsKeepTheirRankAndCompositionsAreToldOnce) {
  Finished f;
  f.run.ranks[1].warnings = {"c10d::allreduce_: no autograd kernel"};
  f.run.ranks[0].composed = f.run.ranks[1].composed = {"all_reduce max: all_gather"};
  const CaseResult r = f.judged();
  ASSERT_EQ(r.warnings.size(), 1);
  EXPECT_EQ(r.warnings[0].rank, 1);
  EXPECT_EQ(r.composed.size(), 1);
}

TEST(Skipped, HasTheReason) {
  Finished f;
  EXPECT_FALSE(skipped(f.which, "no GPU", false).as_expected);
  EXPECT_EQ(skipped(f.which, "no GPU", false).why, "no GPU");
  EXPECT_EQ(skipped(f.which, "no GPU", true).as_expected, false);
  f.which.expected.verdict = Verdict::kSkipped;
  EXPECT_EQ(skipped(f.which, "no GPU", false).as_expected, true);
}

TEST(Failed, IsBrokenUnlessExpected) {
  Finished f;
  EXPECT_TRUE(failed(f.which, {ErrorKind::kBackend, -1, "", "no simulator"}, 1).broken);
  f.which.expected.verdict = Verdict::kError;
  EXPECT_EQ(failed(f.which, {ErrorKind::kBackend, -1, "", "no simulator"}, 1).as_expected, true);
}

TEST(IsComplete, NeedsEveryRankWithoutErrorOrSkip) {
  Finished f;
  EXPECT_TRUE(is_complete(f.run));
  f.run.ranks[0].skipped = "why";
  EXPECT_FALSE(is_complete(f.run));
  f.run.ranks[0].skipped = "";
  f.run.ranks[1].error = RankError{};
  EXPECT_FALSE(is_complete(f.run));
}

}  // namespace
}  // namespace distgrad
