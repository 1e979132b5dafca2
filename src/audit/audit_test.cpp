#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "audit/judgement.h"
#include "audit/table.h"
#include "scenario/parse.h"

namespace distgrad {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- the battery

TEST(Battery, EveryTrialIsAValidScenarioOfItsOwnName) {
  for (const CollectiveTraits& kind : kCollectives)
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax, ReduceOp::kPremulSum}) {
      std::set<std::string> names;
      for (const Trial& trial : battery(kind.kind, op)) {
        EXPECT_NO_THROW(parse_scenario(trial.scenario, trial.name)) << kind.name << "\n" << trial.scenario;
        EXPECT_TRUE(names.insert(trial.name).second) << kind.name << " " << trial.name;
      }
    }
}

TEST(Battery, EveryAspectThatAKindHasIsTried) {
  std::set<Aspect> seen;
  for (const Trial& trial : battery(CollectiveKind::kReduceScatter, ReduceOp::kProduct)) seen.insert(trial.aspect);
  EXPECT_EQ(seen.size(), 9U) << "all but the root";
  seen.clear();
  for (const Trial& trial : battery(CollectiveKind::kGather, ReduceOp::kSum)) seen.insert(trial.aspect);
  EXPECT_EQ(seen.size(), 9U) << "all but the values";
}

// Who pads to a multiple of the ranks, or works by chunks, is right where nothing is left over. And a gradient goes through the
// zeros of a product, or all of it is zero and any rule right.
TEST(Battery, OddNumbersOfElementsAndZerosWithAGradientAreTried) {
  const std::vector<Trial> trials = battery(CollectiveKind::kAllReduce, ReduceOp::kProduct);
  const auto text_of = [&](const char* name) {
    const auto found = std::find_if(trials.begin(), trials.end(), [&](const Trial& t) { return t.name == name; });
    return found == trials.end() ? "" : found->scenario;
  };
  EXPECT_THAT(text_of("one-dim"), HasSubstr("\"shape\": [\n     7\n"));
  EXPECT_THAT(text_of("one-zero"), HasSubstr("x - x.detach()"));
  EXPECT_THAT(text_of("two-zeros"), HasSubstr("x - x.detach()"));
}

TEST(Battery, AspectsOnRequestComeLastAndInTheirModes) {
  const Aspect asked[] = {Aspect::kCheckpoint, Aspect::kAutocast, Aspect::kAsync, Aspect::kCompile, Aspect::kDoubleBackward};
  for (const CollectiveTraits& kind : kCollectives) {
    const std::size_t always = battery(kind.kind, ReduceOp::kSum).size();
    const std::vector<Trial> all = battery(kind.kind, ReduceOp::kSum, asked);
    std::set<Aspect> seen;
    std::set<std::string> names, modes;
    for (const Trial& trial : all) EXPECT_TRUE(names.insert(trial.name).second) << kind.name << " " << trial.name;
    for (std::size_t i = always; i < all.size(); ++i) {
      EXPECT_NO_THROW(parse_scenario(all[i].scenario, all[i].name)) << kind.name << "\n" << all[i].scenario;
      EXPECT_TRUE(aspects()[static_cast<std::size_t>(all[i].aspect)].on_request);
      seen.insert(all[i].aspect);
      modes.insert(all[i].mode);
    }
    EXPECT_EQ(seen.size(), std::size(asked)) << kind.name;
    EXPECT_THAT(modes, ElementsAre("", "async", "autocast", "checkpoint", "checkpoint-reentrant", "compile")) << kind.name;
  }
}

TEST(Battery, ASliceAlongTheLastDimIsAskedInAParallelRegionToo) {
  const std::vector<Trial> trials = battery(CollectiveKind::kSlice, ReduceOp::kSum);
  const bool asked = std::any_of(trials.begin(), trials.end(), [](const Trial& t) {
    return t.loss == Trial::Loss::kOneLoss && t.aspect == Aspect::kDim && t.scenario.find("\"dim\": -1") != std::string::npos;
  });
  EXPECT_TRUE(asked) << "else Megatron's scatter, which knows no other, is accused of its gather";
}

// ---- the judgement

TrialResult result(Trial::Loss loss, Verdict verdict, bool mean, const std::string& rule = "", int world_size = 3) {
  TrialResult t;
  t.trial = {Aspect::kRanks, loss, "three-ranks", "{}", false, ""};
  t.result.which.world_size = world_size;
  t.result.verdict = verdict;
  GradientComparison g;
  g.matches = {{"sum", verdict == Verdict::kMatch}, {"mean", mean}};
  t.result.gradients = {g};
  if (!rule.empty()) {
    Finding f;
    f.rule = rule;
    f.text = "what is wrong";
    t.result.findings = {f};
  }
  return t;
}

Judgement judged(const std::vector<TrialResult>& results, const std::string& objective = "") {
  return judge_collective(CollectiveKind::kAllReduce, ReduceOp::kSum, results, objective);
}

constexpr auto kSum = Trial::Loss::kSum, kOneLoss = Trial::Loss::kOneLoss;

TEST(Judgement, AFunctionThatIsRightForAnotherObjectiveIsNotWrong) {
  const Judgement adjoint = judged({result(kSum, Verdict::kMatch, false), result(kOneLoss, Verdict::kMismatch, false, "objective")});
  EXPECT_FALSE(adjoint.wrong);
  EXPECT_THAT(adjoint.right_for, ElementsAre("sum"));
  EXPECT_EQ(adjoint.rule, "adjoint");
  EXPECT_EQ(adjoint.signature, "P->R");
  const Judgement identity =
      judged({result(kSum, Verdict::kMismatch, false, "identity-backward"), result(kOneLoss, Verdict::kMatch, true)});
  EXPECT_FALSE(identity.wrong);
  EXPECT_THAT(identity.right_for, ElementsAre("replicated"));
  EXPECT_EQ(identity.rule, "identity-backward");
  EXPECT_EQ(identity.signature, "P->I");
  const Judgement averaged = judged({result(kSum, Verdict::kMismatch, true, "scaled"), result(kOneLoss, Verdict::kMatch, true)});
  EXPECT_THAT(averaged.right_for, ElementsAre("mean", "replicated"));
}

TEST(Judgement, WrongIsWhatIsRightUnderNoObjective) {
  const std::vector<TrialResult> results = {result(kSum, Verdict::kMatch, false),
                                            result(kSum, Verdict::kMismatch, false, "contiguity"),
                                            result(kOneLoss, Verdict::kMismatch, false, "objective")};
  const Judgement j = judged(results);
  EXPECT_TRUE(j.wrong);
  EXPECT_EQ(j.rule, "contiguity");
  EXPECT_EQ(j.smallest_failure, &results[1]);
  EXPECT_EQ(j.cells[0].right, 1);
  EXPECT_EQ(j.cells[0].tried, 2);
  EXPECT_EQ(j.signature, "");
}

TEST(Judgement, AForwardThatGoesWrongSomewhereIsNotNamedByTheBackward) {
  const std::vector<TrialResult> results = {result(kSum, Verdict::kMismatch, false, "identity-backward"),
                                            result(kSum, Verdict::kMismatch, false, "identity-backward"),
                                            result(kOneLoss, Verdict::kMatch, false), result(kOneLoss, Verdict::kMatch, false),
                                            result(kOneLoss, Verdict::kMismatch, false, "forward")};
  const Judgement j = judged(results);
  EXPECT_TRUE(j.wrong);
  EXPECT_EQ(j.convention, "replicated");
  EXPECT_EQ(j.rule, "forward");
  EXPECT_EQ(j.smallest_failure, &results[4]);
}

TEST(Judgement, WhatIsWrongNearlyEverywhereIsNamedByLossesOfTheRanksOwn) {
  // Of equal cotangents the minimum is each of them.
  const std::vector<TrialResult> results = {
      result(kSum, Verdict::kMismatch, false, "same-op-backward"), result(kSum, Verdict::kMismatch, false, "same-op-backward"),
      result(kOneLoss, Verdict::kMatch, false), result(kOneLoss, Verdict::kMismatch, false, "identity-backward"),
      result(kOneLoss, Verdict::kMismatch, false, "identity-backward")};
  EXPECT_EQ(judged(results).rule, "same-op-backward");
}

TEST(Judgement, RaisingOnMoreThanOneRankIsWrongAndCalledSo) {
  std::vector<TrialResult> results = {result(kSum, Verdict::kMatch, true, "", 1), result(kSum, Verdict::kError, false)};
  results[1].result.error = RankError{"exception", 0, "y", "RuntimeError: invalid gradient"};
  const Judgement j = judged(results);
  EXPECT_TRUE(j.wrong);
  EXPECT_THAT(j.rule, HasSubstr("raises"));
}

TEST(Judgement, WhatRaisesInBackwardIsNoRefusalUnlessItSaysSo) {
  std::vector<TrialResult> results(2, result(kSum, Verdict::kError, false));
  const auto raising = [&](const char* message, bool in_backward) {
    for (TrialResult& t : results) t.result.error = RankError{"exception", 1, "y", message, in_backward};
    return judged(results);
  };
  Judgement j = raising("KeyError: 'bucket 7'", true);
  EXPECT_TRUE(j.offered && j.wrong);
  EXPECT_EQ(j.rule, "it raises in backward");
  EXPECT_THAT(j.errors, testing::ElementsAre("exception on rank 1 in backward (three-ranks): KeyError: 'bucket 7'"));
  EXPECT_FALSE(raising("KeyError: 'bucket 7'", false).offered);
  j = raising("NotImplementedError: no gradient yet", true);
  EXPECT_FALSE(j.offered);
  EXPECT_EQ(j.refusal, "raises: NotImplementedError: no gradient yet");
  for (const char* says_so : {"RuntimeError: all_reduce of max is not supported in backward", "ValueError: Unsupported op: max",
                              "RuntimeError: reduce_scatter_tensor backward only supports 'sum' reduction, got 'avg'"})
    EXPECT_FALSE(raising(says_so, true).offered) << says_so;
}

TEST(Judgement, TheFailingCaseShownIsOneOfTheRuleThatIsNamed) {
  const std::vector<TrialResult> results = {result(kSum, Verdict::kMismatch, false, "unexplained"),
                                            result(kSum, Verdict::kMismatch, false, "precision")};
  const Judgement j = judged(results);
  EXPECT_EQ(j.rule, "precision");
  EXPECT_EQ(j.smallest_failure, &results[1]);
}

// The findings of one trial, all of which lead to its gradients.
TrialResult explained(TrialResult t, const std::vector<std::string>& rules) {
  for (const std::string& rule : rules) {
    t.result.findings.push_back({});
    t.result.findings.back().rule = rule;
    t.result.findings.back().step = rule == "unexplained" ? "" : "y";
    t.result.findings.back().text = "text of " + rule;
  }
  return t;
}

TEST(Judgement, TheRuleNamedIsTheOneThatExplainsTheMostCases) {
  const TrialResult wrong = result(kSum, Verdict::kMismatch, false);
  // The backward of a sum and the full cotangent for every tie are one where all ranks tie.
  std::vector<TrialResult> results = {explained(wrong, {"forgotten-op", "tie"}), explained(wrong, {"tie"})};
  Judgement j = judged(results);
  EXPECT_EQ(j.rule, "tie");
  EXPECT_EQ(j.smallest_failure, &results[1]);
  EXPECT_EQ(j.explanation, "text of tie");
  // One case that happens to fit a factor, or a rule, names nothing that most cases deny.
  results = {explained(wrong, {"unexplained"}), explained(wrong, {"unexplained"}), explained(wrong, {"unexplained"}),
             explained(wrong, {"precision"}), result(kSum, Verdict::kMismatch, false, "scaled")};
  j = judged(results);
  EXPECT_EQ(j.rule, "unexplained");
  EXPECT_EQ(j.explanation, "text of unexplained");
  // A sum's backward for an average is one that sums once too often, and the former is what libraries have.
  results = {explained(wrong, {"forgotten-op", "double-reduction"}), explained(wrong, {"forgotten-op", "double-reduction"}),
             explained(wrong, {"double-reduction"})};
  EXPECT_EQ(judged(results).rule, "forgotten-op");
  // Divided by the size in one case is what the step does, where it is what it does in the others.
  results = {explained(wrong, {"identity-backward", "scaled"}), explained(wrong, {"scaled"}), explained(wrong, {"scaled"})};
  EXPECT_EQ(judged(results).rule, "scaled");
}

TEST(Judgement, AFewCasesThatAreRightByChanceAreNoConvention) {
  std::vector<TrialResult> results(8, explained(result(kSum, Verdict::kMismatch, false), {"no-gradient"}));
  results.push_back(result(kOneLoss, Verdict::kMatch, false));  // of no elements
  for (int i = 0; i < 5; ++i) results.push_back(explained(result(kOneLoss, Verdict::kMismatch, false), {"unexplained"}));
  const Judgement j = judged(results);
  EXPECT_EQ(j.convention, "sum");
  EXPECT_EQ(j.explanation, "text of no-gradient");
}

TEST(Judgement, ThatNearlyAllCasesAreRightIsTold) {
  std::vector<TrialResult> results(7, result(kSum, Verdict::kMatch, false));
  results.push_back(explained(result(kSum, Verdict::kMismatch, false), {"identity-backward"}));
  const TableOptions table{.subject = "m", .requested = {}};
  EXPECT_THAT(audit_text({judged(results)}, table), HasSubstr("In 7 of 8 cases the gradient is right"));
  results[7] = explained(result(kSum, Verdict::kMismatch, false), {"tie"});
  EXPECT_THAT(audit_text({judged(results)}, table), testing::Not(HasSubstr("cases the gradient is right"))) << "one case has ties";
}

TrialResult of_aspect(TrialResult t, Aspect aspect) {
  t.trial.aspect = aspect;
  return t;
}

TEST(Judgement, WhatIsWrongInItsSurroundingsOnlyIsNamedByThem) {
  std::vector<TrialResult> results = {
      result(kSum, Verdict::kMatch, false), result(kOneLoss, Verdict::kMismatch, false, "objective"),
      of_aspect(result(kSum, Verdict::kMismatch, false, "unexplained"), Aspect::kCheckpoint),
      of_aspect(result(kSum, Verdict::kMatch, false), Aspect::kAutocast),
      of_aspect(result(kSum, Verdict::kMismatch, false, "no-gradient"), Aspect::kDoubleBackward)};
  const Judgement j = judged(results);
  EXPECT_TRUE(j.wrong);
  EXPECT_EQ(j.rule, "adjoint, but not in checkpoint, double-backward");
  EXPECT_EQ(j.smallest_failure, &results[2]);
  EXPECT_THAT(j.explanation, HasSubstr("ecomputed"));
  EXPECT_THAT(j.explanation, HasSubstr("@once_differentiable"));
  const std::string text = audit_text({j}, {.subject = "m", .requested = {Aspect::kCheckpoint, Aspect::kAutocast}});
  EXPECT_THAT(text, HasSubstr("values   checkpoint  autocast\n"));
  EXPECT_THAT(text, HasSubstr("0/1         ok        wrong"));
  EXPECT_THAT(audit_text({j}, {.subject = "m", .requested = {}}), testing::Not(HasSubstr("  checkpoint")));
}

TEST(Judgement, ADoubleBackwardCountsForTheSumOnly) {
  const std::vector<TrialResult> results = {
      result(kSum, Verdict::kMismatch, false, "identity-backward"), result(kOneLoss, Verdict::kMatch, true),
      of_aspect(result(kSum, Verdict::kMismatch, false, "forward"), Aspect::kDoubleBackward)};
  const Judgement j = judged(results);
  EXPECT_FALSE(j.wrong);
  EXPECT_THAT(j.right_for, ElementsAre("replicated"));
  EXPECT_EQ(j.cells[static_cast<std::size_t>(Aspect::kDoubleBackward)].state, CellState::kNotTried);
}

TEST(Judgement, ErrorsOfEveryAspectOnRequestAreTold) {
  std::vector<TrialResult> results = {result(kSum, Verdict::kMatch, false), result(kSum, Verdict::kError, false),
                                      of_aspect(result(kSum, Verdict::kError, false), Aspect::kCompile),
                                      of_aspect(result(kSum, Verdict::kError, false), Aspect::kCompile)};
  results[1].result.error = RankError{"exception", 1, "y", "here"};
  results[2].result.error = results[3].result.error = RankError{"exception", 1, "y", "compiled"};
  EXPECT_THAT(judged(results).errors, ElementsAre(HasSubstr("here"), HasSubstr("compiled")));
}

TEST(Judgement, OneRankShowsNoConvention) {
  EXPECT_TRUE(judged({result(kSum, Verdict::kMatch, true, "", 1), result(kSum, Verdict::kMismatch, false, "scaled")}).wrong);
}

TEST(Judgement, ThePinnedObjectiveCounts) {
  const std::vector<TrialResult> results = {result(kSum, Verdict::kMatch, false),
                                            result(kOneLoss, Verdict::kMismatch, false, "objective")};
  EXPECT_TRUE(judged(results, "replicated").wrong);
  EXPECT_FALSE(judged(results, "sum").wrong);
}

TEST(Judgement, CrashesAndRefusalsAreTold) {
  std::vector<TrialResult> results = {result(kSum, Verdict::kMatch, false), result(kSum, Verdict::kError, false)};
  results[1].result.error = RankError{"crash", 1, "y", "killed by SIGSEGV"};
  const Judgement crashed = judged(results);
  EXPECT_FALSE(crashed.wrong) << "what was judged is right";
  EXPECT_EQ(crashed.cells[0].state, CellState::kBroken);
  EXPECT_THAT(crashed.errors, ElementsAre(HasSubstr("SIGSEGV")));
  EXPECT_TRUE(judged({results[1]}).wrong) << "nothing could be judged";
  results[1].result.error->kind = "exception";
  EXPECT_FALSE(judged(results).wrong);
  results.erase(results.begin());
  EXPECT_FALSE(judged(results).offered) << "raises always";
  EXPECT_THAT(judged(results).refusal, HasSubstr("SIGSEGV"));
  results[0] = result(kSum, Verdict::kSkipped, false);
  results[0].result.why = "f takes no op";
  EXPECT_EQ(judged(results).refusal, "f takes no op");
}

TEST(Judgement, CollectivesOfAModuleMustFollowOneConvention) {
  const std::vector<TrialResult> sums = {result(kSum, Verdict::kMatch, false), result(kOneLoss, Verdict::kMismatch, false)};
  const std::vector<TrialResult> ones = {result(kSum, Verdict::kMismatch, false, "identity-backward"),
                                         result(kOneLoss, Verdict::kMatch, false)};
  std::vector<Judgement> module = {judged(sums), judged(ones), judged(sums)};
  judge_together(module);
  EXPECT_FALSE(module[0].wrong);
  EXPECT_TRUE(module[1].wrong);
  EXPECT_THAT(audit_text(module, {.subject = "m", .requested = {}}), HasSubstr("no loss fits both"));
  // What can be tried with losses of the ranks' own only fits every module.
  module = {judged({result(kSum, Verdict::kMatch, false)}), judged(ones)};
  judge_together(module);
  EXPECT_FALSE(module[0].wrong || module[1].wrong);
  module = {judged(ones), judged(ones)};
  judge_together(module);
  EXPECT_FALSE(module[0].wrong || module[1].wrong);
}

}  // namespace
}  // namespace distgrad
