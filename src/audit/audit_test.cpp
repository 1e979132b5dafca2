#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "audit/audit_report.h"
#include "audit/battery.h"
#include "audit/judgement.h"
#include "audit/table.h"
#include "audit/tally.h"
#include "report/words.h"
#include "scenario/parse.h"

namespace distgrad {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- the battery

std::vector<ReduceOp> ops_of(const CollectiveTraits& kind) {
  if (!kind.takes_op) return {ReduceOp::kSum};
  return {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax, ReduceOp::kPremulSum};
}

const Trial* trial_named(const std::vector<Trial>& trials, const std::string& name) {
  const auto found =
      std::find_if(trials.begin(), trials.end(), [&](const Trial& t) { return t.name == name; });
  return found == trials.end() ? nullptr : &*found;
}

std::string text_of(const std::vector<Trial>& trials, const std::string& name) {
  const Trial* trial = trial_named(trials, name);
  return trial ? trial->scenario : "";
}

TEST(Battery, EveryTrialIsAValidScenarioOfItsOwnName) {
  for (const char* objective : {"", "sum", "mean", "replicated", "rank:0"})
    for (const int world_size : {0, 1, 2, 3, 4, 5})
      for (const CollectiveTraits& kind : kCollectives)
        for (const ReduceOp op : ops_of(kind)) {
          std::set<std::string> names;
          const auto trials =
              battery(kind.kind, op, {.objective = objective, .world_size = world_size});
          EXPECT_FALSE(trials.empty());
          for (const Trial& trial : trials) {
            EXPECT_NO_THROW(parse_scenario(trial.scenario, trial.name)) << kind.name << "\n"
                                                                        << trial.scenario;
            EXPECT_TRUE(names.insert(trial.name).second) << kind.name << " " << trial.name;
          }
        }
}

TEST(Battery, EveryAspectThatAKindHasIsTried) {
  const auto aspects_of = [](CollectiveKind kind, ReduceOp op) {
    std::set<Aspect> seen;
    for (const Trial& trial : battery(kind, op)) seen.insert(trial.aspect);
    return seen.size();
  };
  EXPECT_EQ(aspects_of(CollectiveKind::kReduceScatter, ReduceOp::kProduct), 9U)
      << "all but the root";
  EXPECT_EQ(aspects_of(CollectiveKind::kGather, ReduceOp::kSum), 9U) << "all but the values";
}

// Who pads to a multiple of the ranks, or works by chunks, is right where nothing is left over. And
// a gradient goes through the zeros of a product, or all of it is zero and any rule right.
TEST(Battery, OddNumbersOfElementsAndZerosWithAGradientAreTried) {
  const std::vector<Trial> trials = battery(CollectiveKind::kAllReduce, ReduceOp::kProduct);
  EXPECT_THAT(text_of(trials, "one-dim"), HasSubstr("\"shape\": [\n     7\n"));
  EXPECT_THAT(text_of(trials, "one-zero"), HasSubstr("x - x.detach()"));
  EXPECT_THAT(text_of(trials, "two-zeros"), HasSubstr("x - x.detach()"));
}

TEST(Battery, AspectsOnRequestComeLastAndInTheirModes) {
  const Aspect asked[] = {Aspect::kCheckpoint, Aspect::kAutocast, Aspect::kAsync, Aspect::kCompile,
                          Aspect::kDoubleBackward};
  for (const CollectiveTraits& kind : kCollectives) {
    const std::size_t always = battery(kind.kind, ReduceOp::kSum).size();
    const std::vector<Trial> all = battery(kind.kind, ReduceOp::kSum, {.requested = asked});
    std::set<Aspect> seen;
    std::set<std::string> names, modes;
    for (const Trial& trial : all)
      EXPECT_TRUE(names.insert(trial.name).second) << kind.name << " " << trial.name;
    for (std::size_t i = always; i < all.size(); ++i) {
      EXPECT_NO_THROW(parse_scenario(all[i].scenario, all[i].name)) << kind.name << "\n"
                                                                    << all[i].scenario;
      EXPECT_TRUE(row_of(all[i].aspect).on_request);
      seen.insert(all[i].aspect);
      modes.insert(all[i].mode);
    }
    EXPECT_EQ(seen.size(), std::size(asked)) << kind.name;
    EXPECT_THAT(modes, ElementsAre("", "async", "autocast", "checkpoint", "checkpoint-reentrant",
                                   "compile"))
        << kind.name;
  }
}

TEST(Battery, OfOneSizeAndForOneObjectiveEveryProgramIsAsAsked) {
  for (const CollectiveTraits& kind : kCollectives)
    for (const Trial& trial :
         battery(kind.kind, ReduceOp::kSum, {.objective = "mean", .world_size = 4})) {
      EXPECT_THAT(trial.scenario, HasSubstr("\"objective\": \"mean\""))
          << kind.name << " " << trial.name;
      EXPECT_THAT(trial.scenario,
                  testing::AnyOf(HasSubstr("\"world_size\": 4"), HasSubstr("\"mesh\"")))
          << trial.name;
    }
  EXPECT_THAT(battery(CollectiveKind::kBroadcast, ReduceOp::kSum,
                      {.objective = "rank:2", .world_size = 3})[0]
                  .scenario,
              HasSubstr("\"rank\": 2"));
}

// What enters a parallel region is asked there in every aspect; else Megatron's copy, wrong in its
// subgroups, would pass.
TEST(Battery, CopyAndSliceAreAskedInAParallelRegionInEveryAspect) {
  for (const CollectiveKind kind : {CollectiveKind::kCopy, CollectiveKind::kSlice}) {
    std::set<Aspect> seen;
    for (const Trial& t : battery(kind, ReduceOp::kSum)) {
      if (t.loss != Trial::Loss::kOneLoss) continue;
      seen.insert(t.aspect);
      EXPECT_TRUE(t.needs_all_reduce) << t.name;
      EXPECT_THAT(t.scenario, HasSubstr("invariant")) << t.name;
    }
    const std::set<Aspect> wanted = {Aspect::kRanks, Aspect::kGroups,    Aspect::kDType,
                                     Aspect::kShape, Aspect::kCotangent, Aspect::kOperand,
                                     Aspect::kGraph};
    EXPECT_TRUE(std::includes(seen.begin(), seen.end(), wanted.begin(), wanted.end()))
        << traits(kind).name;
  }
  EXPECT_THAT(text_of(battery(CollectiveKind::kSlice, ReduceOp::kSum), "last-dim-one-loss"),
              HasSubstr("\"dim\": -1"));
}

TEST(Battery, CollectivesOfWhichTheRanksShareNothingAreAskedAboutOneLossBySum) {
  const auto trials = battery(CollectiveKind::kAllToAll, ReduceOp::kSum);
  const Trial* uneven = trial_named(trials, "uneven");
  ASSERT_NE(uneven, nullptr);
  EXPECT_EQ(trial_named(trials, "uneven-one-loss"), nullptr);
  EXPECT_TRUE(counts_for(*uneven, CollectiveKind::kAllToAll, "replicated"));
  EXPECT_TRUE(counts_for(*uneven, CollectiveKind::kAllToAll, "mean"));
  EXPECT_FALSE(counts_for(*uneven, CollectiveKind::kAllGather, "replicated"));
  EXPECT_NE(trial_named(trials, "3-ranks-one-loss"), nullptr) << "some are run for all that";
  EXPECT_NE(trial_named(trials, "3-ranks-mean"), nullptr);
}

// A matrix of sizes that is its own transpose would pass a backward that forgets to swap them.
TEST(Battery, WhatRanksReceiveInAnUnevenExchangeIsNotWhatTheySend) {
  for (const int ranks : {2, 3, 4, 5, 7})
    for (const Trial& trial :
         battery(CollectiveKind::kAllToAll, ReduceOp::kSum, {.world_size = ranks})) {
      EXPECT_EQ(trial.is_uneven, trial.has_splits);
      if (!trial.is_uneven) continue;
      const auto splits = nlohmann::json::parse(trial.scenario)["steps"][0]["y"]["splits"];
      bool differs = false, totals_differ = false;
      for (int r = 0; r < ranks; ++r) {
        int sent = 0, received = 0;
        for (int q = 0; q < ranks; ++q) {
          differs = differs || splits[r][q] != splits[q][r];
          sent += splits[r][q].get<int>(), received += splits[q][r].get<int>();
        }
        EXPECT_EQ(sent, 2 * ranks);
        totals_differ = totals_differ || sent != received;
      }
      EXPECT_TRUE(differs) << trial.name << " of " << ranks;
      EXPECT_EQ(totals_differ, trial.program == "uneven") << trial.name << " of " << ranks;
    }
}

// ---- the judgement

TrialResult result(Trial::Loss loss, Verdict verdict, const std::string& rule = "",
                   int world_size = 3) {
  TrialResult t;
  t.trial.loss = loss;
  t.trial.name = t.trial.program = "three-ranks";
  t.result.which.world_size = world_size;
  t.result.verdict = verdict;
  if (!rule.empty()) {
    Finding f;
    f.rule = *FindingName::named(rule);
    f.text = "what is wrong";
    t.result.findings = {f};
  }
  return t;
}

constexpr auto kSum = Trial::Loss::kSum, kMean = Trial::Loss::kMean,
               kOneLoss = Trial::Loss::kOneLoss;

TrialResult failed(const std::string& kind, const std::string& message, bool in_backward,
                   Trial::Loss loss = kSum) {
  TrialResult t = result(loss, Verdict::kError);
  t.result.error = RankError{*error_kind_named(kind), 1, "y", message, in_backward};
  return t;
}

Judgement judged(const std::vector<TrialResult>& results, const std::string& objective = "",
                 CollectiveKind kind = CollectiveKind::kAllReduce) {
  return judge_collective(kind, ReduceOp::kSum, results, objective);
}

TEST(Judgement, AFunctionThatIsRightForAnotherObjectiveIsNotWrong) {
  const Judgement adjoint =
      judged({result(kSum, Verdict::kMatch), result(kOneLoss, Verdict::kMismatch, "objective")});
  EXPECT_FALSE(adjoint.wrong);
  EXPECT_THAT(adjoint.right_for, ElementsAre("sum", "mean"));
  EXPECT_THAT(adjoint.wrong_for, ElementsAre("replicated"));
  EXPECT_EQ(adjoint.rule, "adjoint");
  EXPECT_EQ(adjoint.signature, "P->R");
  const Judgement identity = judged(
      {result(kSum, Verdict::kMismatch, "identity-backward"), result(kOneLoss, Verdict::kMatch)});
  EXPECT_FALSE(identity.wrong);
  EXPECT_THAT(identity.right_for, ElementsAre("replicated"));
  EXPECT_THAT(identity.wrong_for, ElementsAre("sum", "mean"));
  EXPECT_EQ(identity.rule, "identity-backward");
  EXPECT_EQ(identity.signature, "P->I");
}

// `mean` starts the backward of `sum` with 1/N, as `run --objective mean` does: what divides
// besides divides twice.
TEST(Judgement, WhatIsRightForTheSumIsRightForTheMean) {
  EXPECT_THAT(judged({result(kSum, Verdict::kMatch), result(kMean, Verdict::kMatch)}).right_for,
              ElementsAre("sum", "mean"));
  EXPECT_THAT(judged({result(kSum, Verdict::kMatch), result(kMean, Verdict::kMismatch)}).right_for,
              ElementsAre("sum"));
  EXPECT_FALSE(judged({result(kMean, Verdict::kMatch)}, "mean").wrong);
  EXPECT_TRUE(judged({result(kMean, Verdict::kMismatch, "scaled")}, "mean").wrong);
}

TEST(Judgement, WithoutAnythingSharedOneLossIsTheSum) {
  const auto every = ElementsAre("sum", "mean", "replicated");
  EXPECT_THAT(judged({result(kSum, Verdict::kMatch)}, "", CollectiveKind::kAllToAll).right_for,
              every);
  EXPECT_THAT(judged({result(kSum, Verdict::kMatch)}, "", CollectiveKind::kCopy).right_for,
              ElementsAre("sum", "mean"));
}

TEST(Judgement, WrongIsWhatIsRightUnderNoObjective) {
  const std::vector<TrialResult> results = {result(kSum, Verdict::kMatch),
                                            result(kSum, Verdict::kMismatch, "contiguity"),
                                            result(kOneLoss, Verdict::kMismatch, "objective")};
  const Judgement j = judged(results);
  EXPECT_TRUE(j.wrong);
  EXPECT_EQ(j.rule, "contiguity");
  EXPECT_EQ(j.smallest_failure, &results[1]);
  EXPECT_EQ(j.cells[0].right(), 1);
  EXPECT_EQ(j.cells[0].tried(), 2);
  EXPECT_EQ(j.signature, "");
}

TEST(Judgement, OfAWrongForwardItIsSaidWhatItsCodeWarnedOf) {
  for (const std::string rule : {"forward", "contiguity"}) {
    std::vector<TrialResult> results = {result(kSum, Verdict::kMismatch, rule)};
    results[0].result.warnings = {{.rank = 1, .text = "f returned None"}};
    const std::string text = audit_text({judged(results)}, {.subject = "m"});
    EXPECT_EQ(text.find("  warning from rank 1: f returned None") != std::string::npos,
              rule == "forward")
        << text;
  }
}

TEST(Judgement, AForwardThatGoesWrongSomewhereIsNotNamedByTheBackward) {
  const std::vector<TrialResult> results = {
      result(kSum, Verdict::kMismatch, "identity-backward"),
      result(kSum, Verdict::kMismatch, "identity-backward"), result(kOneLoss, Verdict::kMatch),
      result(kOneLoss, Verdict::kMatch), result(kOneLoss, Verdict::kMismatch, "forward")};
  const Judgement j = judged(results);
  EXPECT_TRUE(j.wrong);
  EXPECT_EQ(j.convention, "replicated");
  EXPECT_EQ(j.rule, "forward");
  EXPECT_EQ(j.smallest_failure, &results[4]);
}

TEST(Judgement, WhatIsWrongNearlyEverywhereIsNamedByLossesOfTheRanksOwn) {
  // Of equal cotangents the minimum is each of them.
  const std::vector<TrialResult> results = {
      result(kSum, Verdict::kMismatch, "same-op-backward"),
      result(kSum, Verdict::kMismatch, "same-op-backward"), result(kOneLoss, Verdict::kMatch),
      result(kOneLoss, Verdict::kMismatch, "identity-backward"),
      result(kOneLoss, Verdict::kMismatch, "identity-backward")};
  EXPECT_EQ(judged(results).rule, "same-op-backward");
}

TEST(Judgement, RaisingOnMoreThanOneRankIsWrongAndCalledSo) {
  const Judgement j = judged(
      {result(kSum, Verdict::kMatch, "", 1), failed("exception", "RuntimeError: no", false)});
  EXPECT_TRUE(j.wrong);
  EXPECT_THAT(j.rule, HasSubstr("raises"));
  TrialResult refused = result(kSum, Verdict::kSkipped);
  EXPECT_FALSE(judged({result(kSum, Verdict::kMatch, "", 1), refused}).offered)
      << "one rank shows nothing";
  TrialResult empty = result(kSum, Verdict::kMatch);
  empty.trial.program = "empty";
  EXPECT_FALSE(judged({empty, refused}).offered) << "nor do no elements";
}

TEST(Judgement, WhatRaisesInBackwardIsNoRefusalUnlessItSaysSo) {
  const auto raising = [](const char* message, bool in_backward) {
    return judged(std::vector<TrialResult>(2, failed("exception", message, in_backward)));
  };
  Judgement j = raising("KeyError: 'bucket 7'", true);
  EXPECT_TRUE(j.offered && j.wrong);
  EXPECT_EQ(j.rule, "it raises in backward");
  ASSERT_EQ(j.notes.size(), 1U);
  EXPECT_EQ(j.notes[0].text, "exception on rank 1 in backward (three-ranks): KeyError: 'bucket 7'");
  EXPECT_FALSE(raising("KeyError: 'bucket 7'", false).offered);
  j = raising("NotImplementedError: no gradient yet", true);
  EXPECT_FALSE(j.offered);
  EXPECT_EQ(j.refusal, "refused in backward: NotImplementedError: no gradient yet");
  // Its forward asks for no group.
  j = raising("AssertionError: model parallel group is not initialized", true);
  EXPECT_FALSE(j.offered);
  EXPECT_THAT(j.refusal, HasSubstr("group is not initialized (a function setup(groups) in the"));
  for (const char* says_so :
       {"RuntimeError: all_reduce of max is not supported in backward",
        "ValueError: Unsupported op: max",
        "RuntimeError: reduce_scatter_tensor backward only supports 'sum' reduction, got 'avg'",
        "AssertionError: assert x.device.type != 'cpu'\n  File \"a.py\""})
    EXPECT_FALSE(raising(says_so, true).offered) << says_so;
  EXPECT_TRUE(raising("AssertionError: assert x.shape == y.shape\n  x.is_cuda", true).offered);
}

// The forward took what it was given: what its backward then does is no refusal, however few cases
// show it.
TEST(Judgement, OneBackwardThatRaisesDiesOrHangsIsWrong) {
  std::vector<TrialResult> results(8, result(kSum, Verdict::kMatch));
  results.push_back(
      failed("exception", "RuntimeError: Split sizes doesn't match total dim 0 size", true));
  results.back().trial.is_uneven = results.back().trial.has_splits = true;
  Judgement j = judged(results, "", CollectiveKind::kAllToAll);
  EXPECT_TRUE(j.wrong);
  EXPECT_EQ(j.rule, "adjoint, but it raises in backward");
  EXPECT_EQ(j.smallest_failure, &results[8]);
  EXPECT_THAT(j.explanation, HasSubstr("In 1 of 9 cases its backward raises"));
  EXPECT_THAT(j.explanation, HasSubstr("sends by the sizes that the forward received by"));
  EXPECT_THAT(audit_text({j}, {.subject = "m"}), HasSubstr("8/9"));
  results.back() = failed("crash", "killed by SIGABRT", true);
  EXPECT_EQ(judged(results).rule, "adjoint, but it dies in backward");
  results.back() = failed("hang", "not done after 10 s", true);
  EXPECT_EQ(judged(results).rule, "adjoint, but it hangs in backward");
  results.back() = failed("exception", "RuntimeError: no such luck", false);
  EXPECT_FALSE(judged(results).wrong) << "in forward it is noted, and no more";
}

TEST(Judgement, WhatIsRightForOneLossIsCountedAsWrongForDistributedDataParallel) {
  Judgement j =
      judged({result(kSum, Verdict::kMismatch, "own-slice"),
              result(kMean, Verdict::kMismatch, "own-slice"), result(kOneLoss, Verdict::kMatch)});
  EXPECT_FALSE(j.wrong);
  EXPECT_TRUE(j.needs_one_loss());
  EXPECT_THAT(audit_text({j}, {.subject = "m"}),
              AllOf(HasSubstr("0 wrong, 1 wrong for DistributedDataParallel in "),
                    HasSubstr("right where every rank computes one and the same loss")));
  j = judged({result(kSum, Verdict::kMatch), result(kMean, Verdict::kMatch),
              result(kOneLoss, Verdict::kMatch)});
  EXPECT_FALSE(j.needs_one_loss());
  EXPECT_THAT(audit_text({j}, {.subject = "m"}), HasSubstr("1 collective offered, 0 wrong in "));
}

TEST(Judgement, ARefusalInBackwardIsToldAndCounted) {
  std::vector<TrialResult> results(8, result(kSum, Verdict::kMatch));
  results.push_back(
      failed("exception", "IndexError: slice() cannot be applied to a 0-dim tensor.", true));
  EXPECT_TRUE(judged(results).wrong)
      << "of another tensor than one without a dimension it is no refusal";
  results.back().trial.program = results.back().trial.name = "scalar";
  const Judgement j = judged(results);
  EXPECT_FALSE(j.wrong);
  EXPECT_FALSE(j.is_tried_in_full());
  const std::string text = audit_text({j}, {.subject = "m"});
  EXPECT_THAT(text, HasSubstr("refused in backward (scalar): IndexError"));
  EXPECT_THAT(text, HasSubstr("1 collective offered, 0 wrong, 1 refused in backward in "));
}

// Gloo ends the process where ranks send more than is expected; a gather has no parameter that
// would say the sizes.
TEST(Judgement, WhatGlooDoesNotTakeIsRefused) {
  const char* words =
      "killed by SIGABRT in step y, forward; it wrote: op.preamble.length <= op.nbytes. 24 vs 8. "
      "Received data size doesn't match expected size.";
  std::vector<TrialResult> results = {result(kSum, Verdict::kMatch), failed("crash", words, false)};
  EXPECT_EQ(count_of(judged(results).counts, Outcome::kBreaks), 1);
  results[1].trial.is_uneven = true;
  const Judgement j = judged(results);
  EXPECT_EQ(count_of(j.counts, Outcome::kRefused), 1);
  EXPECT_THAT(audit_text({j}, {.subject = "m"}),
              HasSubstr("refused (three-ranks): takes operands of one size only"));
  results[1].trial.has_splits = true;
  EXPECT_EQ(count_of(judged(results).counts, Outcome::kBreaks), 1)
      << "who says that it takes sizes has to";
  results[1].trial.has_splits = false;
  results[1].result.error->in_backward = true;
  EXPECT_TRUE(judged(results).wrong) << "the forward took it";
}

TEST(Judgement, WhatTheSimulationDoesIsNotTheSubjectsDoing) {
  std::vector<TrialResult> results = {
      result(kSum, Verdict::kMatch),
      failed("hang", "the simulation was not done after 10 s", false)};
  results[1].result.error->rank = -1;
  const Judgement j = judged(results);
  EXPECT_EQ(count_of(j.counts, Outcome::kRefused), 1);
  EXPECT_FALSE(j.is_tried_in_full());
}

TEST(Judgement, WritingIntoTheOperandIsNamed) {
  std::vector<TrialResult> results(8, result(kSum, Verdict::kMatch));
  results.push_back(result(kSum, Verdict::kMismatch, "forward"));
  results.back().trial.mode = "shared";
  const Judgement j = judged(results);
  EXPECT_TRUE(j.wrong);
  EXPECT_EQ(j.rule, "adjoint, but it writes into its operand");
  EXPECT_THAT(j.explanation, HasSubstr("Work on a clone"));
}

// A row of results as the formats for CI get it.
TEST(AuditReport, CountsByTheRowsConventionAndDrawsIt) {
  static const Scenario scenario = [] {
    Scenario s;
    s.file = "all_reduce-sum/three-ranks";
    return s;
  }();
  std::vector<TrialResult> results = {result(kSum, Verdict::kMatch),
                                      result(kSum, Verdict::kMismatch, "contiguity"),
                                      result(kOneLoss, Verdict::kMismatch, "objective"),
                                      failed("exception", "unsupported op", false)};
  for (TrialResult& t : results) t.result.which.scenario = &scenario;
  const Judgement wrong = judged(results);
  const Report report = audit_report({wrong}, {"losses.py:f takes two tensors"});
  EXPECT_EQ(report.summary.as_expected, 1);
  EXPECT_EQ(report.summary.not_as_expected, 2);  // what raises in forward is as wrong as its row
  EXPECT_EQ(report.cases.size(), 3u);            // one loss is another convention
  ASSERT_TRUE(report.picture && report.picture->rows.size() == 2);
  EXPECT_EQ(report.picture->columns, (std::vector<std::string>{"function", "right for", "ranks"}));
  EXPECT_EQ(report.picture->rows[0].squares[1].word, "none");
  EXPECT_EQ(report.picture->rows[0].squares[2].tone, Picture::Tone::kWrong);

  std::vector<TrialResult> right = {results[0], results[3]};
  const Report good = audit_report({judged(right)}, {});
  EXPECT_EQ(good.summary.not_as_expected + good.summary.broken, 0);
  EXPECT_EQ(good.summary.skipped, 1);
  EXPECT_EQ(good.picture->rows[0].squares[1].tone, Picture::Tone::kRight);
}

TEST(Judgement, WhatIsDisputedIsNoVerdict) {
  const Judgement j = judged({result(kSum, Verdict::kMatch), result(kSum, Verdict::kDisputed)});
  EXPECT_FALSE(j.wrong || j.is_tried_in_full());
  EXPECT_THAT(audit_text({j}, {.subject = "m"}), HasSubstr("0 wrong, 1 disputed in"));
  const Judgement only = judged({result(kSum, Verdict::kDisputed)});
  EXPECT_TRUE(only.offered);
  EXPECT_FALSE(only.wrong);
}

TEST(Judgement, TheFailingCaseShownIsOneOfTheRuleThatIsNamed) {
  const std::vector<TrialResult> results = {result(kSum, Verdict::kMismatch, "unexplained"),
                                            result(kSum, Verdict::kMismatch, "precision")};
  const Judgement j = judged(results);
  EXPECT_EQ(j.rule, "precision");
  EXPECT_EQ(j.smallest_failure, &results[1]);
}

// The findings of one trial, all of which lead to its gradients.
TrialResult explained(TrialResult t, const std::vector<std::string>& rules) {
  for (const std::string& rule : rules) {
    t.result.findings.push_back({});
    t.result.findings.back().rule = *FindingName::named(rule);
    t.result.findings.back().step = rule == "unexplained" ? "" : "y";
    t.result.findings.back().text = "text of " + rule;
  }
  return t;
}

TEST(Judgement, TheRuleNamedIsTheOneThatExplainsTheMostCases) {
  const TrialResult wrong = result(kSum, Verdict::kMismatch);
  // The backward of a sum and the full cotangent for every tie are one where all ranks tie.
  std::vector<TrialResult> results = {explained(wrong, {"forgotten-op", "tie"}),
                                      explained(wrong, {"tie"})};
  Judgement j = judged(results);
  EXPECT_EQ(j.rule, "tie");
  EXPECT_EQ(j.smallest_failure, &results[1]);
  EXPECT_EQ(j.explanation, "text of tie");
  // One case that happens to fit a factor, or a rule, names nothing that most cases deny.
  results = {explained(wrong, {"unexplained"}), explained(wrong, {"unexplained"}),
             explained(wrong, {"unexplained"}), explained(wrong, {"precision"}),
             result(kSum, Verdict::kMismatch, "scaled")};
  j = judged(results);
  EXPECT_EQ(j.rule, "unexplained");
  EXPECT_EQ(j.explanation, "text of unexplained");
  // A sum's backward for an average is one that sums once too often, and the former is what
  // libraries have.
  results = {explained(wrong, {"forgotten-op", "double-reduction"}),
             explained(wrong, {"forgotten-op", "double-reduction"}),
             explained(wrong, {"double-reduction"})};
  EXPECT_EQ(judged(results).rule, "forgotten-op");
  // Divided by the size in one case is what the step does, where it is what it does in the others.
  results = {explained(wrong, {"identity-backward", "scaled"}), explained(wrong, {"scaled"}),
             explained(wrong, {"scaled"})};
  EXPECT_EQ(judged(results).rule, "scaled");
}

TEST(Judgement, AFewCasesThatAreRightByChanceAreNoConvention) {
  std::vector<TrialResult> results(8, explained(result(kSum, Verdict::kMismatch), {"no-gradient"}));
  results.push_back(result(kOneLoss, Verdict::kMatch));  // of no elements
  for (int i = 0; i < 5; ++i)
    results.push_back(explained(result(kOneLoss, Verdict::kMismatch), {"unexplained"}));
  const Judgement j = judged(results);
  EXPECT_EQ(j.convention, "sum");
  EXPECT_EQ(j.explanation, "text of no-gradient");
}

TEST(Judgement, ThatNearlyAllCasesAreRightIsTold) {
  std::vector<TrialResult> results(7, result(kSum, Verdict::kMatch));
  results.push_back(explained(result(kSum, Verdict::kMismatch), {"identity-backward"}));
  const TableOptions table{.subject = "m", .requested = {}};
  EXPECT_THAT(audit_text({judged(results)}, table),
              HasSubstr("In 7 of 8 cases the gradient is right"));
  results[7] = explained(result(kSum, Verdict::kMismatch), {"tie"});
  EXPECT_THAT(audit_text({judged(results)}, table),
              testing::Not(HasSubstr("cases the gradient is right")))
      << "one case has ties";
}

TrialResult of_aspect(TrialResult t, Aspect aspect) {
  t.trial.aspect = aspect;
  return t;
}

TEST(Judgement, WhatIsWrongInItsSurroundingsOnlyIsNamedByThem) {
  std::vector<TrialResult> results = {
      result(kSum, Verdict::kMatch), result(kOneLoss, Verdict::kMismatch, "objective"),
      of_aspect(result(kSum, Verdict::kMismatch, "unexplained"), Aspect::kCheckpoint),
      of_aspect(result(kSum, Verdict::kMatch), Aspect::kAutocast),
      of_aspect(result(kSum, Verdict::kMismatch, "no-gradient"), Aspect::kDoubleBackward)};
  const Judgement j = judged(results);
  EXPECT_TRUE(j.wrong);
  EXPECT_EQ(j.rule, "adjoint, but not in checkpoint, double-backward");
  EXPECT_EQ(j.smallest_failure, &results[2]);
  EXPECT_THAT(j.explanation, HasSubstr("ecomputed"));
  EXPECT_THAT(j.explanation, HasSubstr("@once_differentiable"));
  const std::string text =
      audit_text({j}, {.subject = "m", .requested = {Aspect::kCheckpoint, Aspect::kAutocast}});
  EXPECT_THAT(text, HasSubstr("              checkpoint autocast\n"));
  EXPECT_THAT(text, HasSubstr("  sum         0/1        ok\n"));
  EXPECT_THAT(audit_text({j}, {.subject = "m"}), testing::Not(HasSubstr("  checkpoint autocast")));
}

TEST(Judgement, WhatOnlyRaisesInItsSurroundingsIsNotSaidToBeWrong) {
  std::vector<TrialResult> results = {
      result(kSum, Verdict::kMatch),
      of_aspect(failed("exception", "RuntimeError: a view was modified", true),
                Aspect::kDoubleBackward)};
  EXPECT_EQ(judged(results).rule, "adjoint, but it raises in double-backward");
  EXPECT_THAT(judged(results).explanation, HasSubstr("a view was modified"));
  EXPECT_THAT(judged(results).explanation, testing::Not(HasSubstr("cut off")));
  results.push_back(of_aspect(result(kSum, Verdict::kMismatch), Aspect::kDoubleBackward));
  EXPECT_EQ(judged(results).rule, "adjoint, but not in double-backward");
}

TEST(Judgement, ADoubleBackwardCountsForTheSumOnly) {
  const std::vector<TrialResult> results = {
      result(kSum, Verdict::kMismatch, "identity-backward"), result(kOneLoss, Verdict::kMatch),
      of_aspect(result(kSum, Verdict::kMismatch, "forward"), Aspect::kDoubleBackward)};
  const Judgement j = judged(results);
  EXPECT_FALSE(j.wrong);
  EXPECT_THAT(j.right_for, ElementsAre("replicated"));
  EXPECT_EQ(j.cells[static_cast<std::size_t>(Aspect::kDoubleBackward)].tried(), 0);
}

// DTensor's: the gradient of a reduce_scatter is one that all ranks share.
TEST(Judgement, ANormThatCountsOnceIsNoMistakeWhereAllRanksHaveOneGradient) {
  const auto of_double_backward = [](CollectiveKind kind, const std::string& rule) {
    const Aspect asked[] = {Aspect::kDoubleBackward};
    const std::vector<Trial> trials = battery(kind, ReduceOp::kSum, {.requested = asked});
    TrialResult second = result(kSum, Verdict::kMismatch, rule);
    second.trial = *trial_named(trials, "double-backward-3-ranks");
    const std::vector<TrialResult> results = {result(kSum, Verdict::kMatch),
                                              result(kOneLoss, Verdict::kMatch), second};
    return judged(results, "", kind).wrong;
  };
  EXPECT_FALSE(of_double_backward(CollectiveKind::kReduceScatter, "objective"));
  EXPECT_TRUE(of_double_backward(CollectiveKind::kReduceScatter, "unexplained")) << "cut off";
  EXPECT_TRUE(of_double_backward(CollectiveKind::kAllToAll, "objective"))
      << "each rank has a gradient of its own";
}

std::vector<std::string> texts_of(const Judgement& j) {
  std::vector<std::string> texts;
  for (const Note& note : j.notes) texts.push_back(note.text);
  return texts;
}

TEST(Judgement, ErrorsOfEveryAspectOnRequestAreTold) {
  const TrialResult compiled = of_aspect(failed("exception", "compiled", false), Aspect::kCompile);
  const Judgement j = judged(
      {result(kSum, Verdict::kMatch), failed("exception", "here", false), compiled, compiled});
  EXPECT_THAT(texts_of(j), ElementsAre(HasSubstr("here"), HasSubstr("compiled")));
}

TEST(Judgement, OneRankShowsNoConvention) {
  EXPECT_TRUE(
      judged({result(kSum, Verdict::kMatch, "", 1), result(kSum, Verdict::kMismatch, "scaled")})
          .wrong);
}

TEST(Judgement, ThePinnedObjectiveCounts) {
  const std::vector<TrialResult> results = {result(kSum, Verdict::kMatch),
                                            result(kOneLoss, Verdict::kMismatch, "objective")};
  EXPECT_TRUE(judged(results, "replicated").wrong);
  EXPECT_FALSE(judged(results, "sum").wrong);
}

TEST(Judgement, CrashesAndRefusalsAreTold) {
  std::vector<TrialResult> results = {result(kSum, Verdict::kMatch),
                                      failed("crash", "killed by SIGSEGV", false)};
  const Judgement crashed = judged(results);
  EXPECT_FALSE(crashed.wrong) << "what was judged is right";
  EXPECT_EQ(count_of(crashed.cells[0].counts, Outcome::kBreaks), 1);
  EXPECT_THAT(texts_of(crashed), ElementsAre(HasSubstr("SIGSEGV")));
  EXPECT_TRUE(judged({results[1]}).wrong) << "nothing could be judged";
  results[1].result.error->kind = ErrorKind::kException;
  EXPECT_FALSE(judged(results).wrong);
  results.erase(results.begin());
  EXPECT_FALSE(judged(results).offered) << "raises always";
  EXPECT_THAT(judged(results).refusal, HasSubstr("SIGSEGV"));
  results[0] = result(kSum, Verdict::kSkipped);
  results[0].result.why = "f takes no op";
  EXPECT_EQ(judged(results).refusal, "f takes no op");
}

const std::vector<TrialResult> kRightForSum = {result(kSum, Verdict::kMatch),
                                               result(kOneLoss, Verdict::kMismatch)};
const std::vector<TrialResult> kRightForOne = {
    result(kSum, Verdict::kMismatch, "identity-backward"), result(kOneLoss, Verdict::kMatch)};

// Megatron's mappings have functions for values of several types.
TEST(Judgement, CollectivesOfAModuleMayFollowSeveralConventions) {
  const Judgement gathers = judged(kRightForSum, "", CollectiveKind::kAllGather);
  const Judgement broadcasts = judged(kRightForSum, "", CollectiveKind::kBroadcast);
  std::vector<Judgement> module = {gathers, judged(kRightForOne), broadcasts};
  note_other_conventions(module);
  EXPECT_FALSE(module[0].wrong || module[1].wrong || module[2].wrong);
  EXPECT_EQ(module[0].beside_others + module[2].beside_others, "");
  EXPECT_THAT(audit_text(module, {.subject = "m"}),
              HasSubstr("all_reduce sum: right for \"replicated\", where most of the subject's"));
  // What is right for every loss fits every module.
  module = {judged({result(kSum, Verdict::kMatch)}, "", CollectiveKind::kSendRecv),
            judged(kRightForOne)};
  note_other_conventions(module);
  EXPECT_EQ(module[0].beside_others + module[1].beside_others, "");
  module = {judged(kRightForOne), judged(kRightForOne, "", CollectiveKind::kAllGather)};
  note_other_conventions(module);
  EXPECT_EQ(module[0].beside_others + module[1].beside_others, "");
}

// A file with a gather for each loss offers both.
TEST(Judgement, TwoFunctionsForOneCollectiveMayFollowTwoConventions) {
  std::vector<Judgement> module = {judged(kRightForSum), judged(kRightForOne),
                                   judged(kRightForSum, "", CollectiveKind::kBroadcast)};
  module[0].function = "losses.py:gather_for_sum";
  module[1].function = "losses.py:gather_for_one";
  note_other_conventions(module);
  EXPECT_EQ(module[0].beside_others + module[1].beside_others + module[2].beside_others, "");
}

// ---- the screen

TEST(Table, SaysWhatItIsRightForAndWhatNot) {
  std::vector<Judgement> rows = {
      judged(kRightForOne), judged(kRightForSum),
      judged({result(kSum, Verdict::kMatch)}, "", CollectiveKind::kAllToAll)};
  rows[0].function = "losses.py:GatherLayer";
  const std::string text = audit_text(rows, {.subject = "m"});
  EXPECT_THAT(text, HasSubstr("right for replicated; wrong for sum and for mean"));
  EXPECT_THAT(text, HasSubstr("(DistributedDataParallel): identity-backward, P->I"));
  EXPECT_THAT(text, HasSubstr("right for sum and mean; wrong for replicated: adjoint, P->R"));
  EXPECT_THAT(text, HasSubstr("right for every objective: adjoint, V->V"));
  EXPECT_THAT(text, HasSubstr("all_reduce of losses.py:GatherLayer\n"));
}

// Two collectives of which every aspect was tried, those on request, too.
struct FullTable {
  std::vector<TrialResult> results;
  std::vector<Judgement> rows;
  TableOptions options{.subject = "m",
                       .lacking = {"gather"},
                       .unusable = {"f: what to pass for `bits` is not known"}};

  FullTable() {
    for (std::size_t a = 0; a < kAspectCount; ++a)
      for (int i = 0; i < 9; ++i)
        results.push_back(of_aspect(result(kSum, Verdict::kMismatch, "same-op-backward"),
                                    static_cast<Aspect>(a)));
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kPremulSum})
      rows.push_back(judge_collective(CollectiveKind::kReduceScatter, op, results, ""));
    for (std::size_t a = 0; a < kAspectCount; ++a)
      if (row_of(static_cast<Aspect>(a)).on_request)
        options.requested.push_back(static_cast<Aspect>(a));
  }

  std::string text(std::size_t width) {
    options.width = width;
    return audit_text(rows, options);
  }
};

TEST(Table, FitsTheTerminal) {
  FullTable table;
  for (const std::size_t width : {60U, 77U, 80U, 128U, 200U}) {
    std::istringstream text(table.text(width));
    for (std::string line; std::getline(text, line);) EXPECT_LE(width_of(line), width) << line;
  }
}

TEST(Table, UsesTheTerminal) {
  FullTable table;
  EXPECT_THAT(table.text(60), HasSubstr("\n  sum: ranks 0/9, groups 0/9, root 0/9, dim 0/9"));
  EXPECT_THAT(table.text(80), HasSubstr("\n  sum         0/9   0/9    0/9 "));
  EXPECT_THAT(table.text(80), HasSubstr("\n              WRONG: same-op-backward"));
  EXPECT_THAT(table.text(200), HasSubstr("0/9     WRONG: same-op-backward"));
}

TEST(Table, OfSeveralFunctionsTheNotesNameThePertinentOne) {
  std::vector<TrialResult> results = {result(kSum, Verdict::kMatch),
                                      failed("exception", "no such luck", false)};
  std::vector<Judgement> rows = {judged(kRightForSum), judged(results)};
  rows[0].function = "losses.py:one";
  rows[1].function = "losses.py:two";
  const std::string text = audit_text(rows, {.subject = "m"});
  EXPECT_THAT(text,
              HasSubstr("all_reduce sum (two): exception on rank 1 (three-ranks): no such luck"));
}

TEST(Table, WhatWasNotTriedIsTold) {
  std::vector<TrialResult> results = {result(kSum, Verdict::kMatch),
                                      of_aspect(result(kSum, Verdict::kSkipped), Aspect::kGroups)};
  results[1].result.why = "f has no parameter for the group";
  const std::string text =
      audit_text({judged(results)}, {.subject = "m",
                                     .left_out = {"uneven"},
                                     .lacking = {"gather"},
                                     .not_asked = {"copy", "slice"},
                                     .unusable = {"g: what to pass for `bits` is not known"}});
  EXPECT_THAT(
      text, HasSubstr("all_reduce sum: refused (three-ranks): f has no parameter for the group\n"));
  EXPECT_THAT(text, HasSubstr("all_reduce sum: not tried: groups\n"));
  EXPECT_THAT(text, HasSubstr("gather: not offered\n"));
  EXPECT_THAT(text, HasSubstr("not tried: g: what to pass for `bits` is not known\n"));
  EXPECT_THAT(text, HasSubstr("left out: uneven\n"));
  EXPECT_THAT(text, HasSubstr("copy, slice (--collective)"));
  EXPECT_THAT(
      text,
      HasSubstr("1 collective offered, 0 wrong, 1 tried in part, 1 not tried, 1 not offered in "));
  const auto json =
      nlohmann::json::parse(audit_json({judged(results)}, {.subject = "m", .lacking = {"gather"}}));
  EXPECT_EQ(json["summary"]["tried_in_part"], 1);
  EXPECT_EQ(json["collectives"][0]["aspects"]["groups"]["state"], "refused");
}

TEST(Tally, StrictWantsEverythingTriedAndRightForWhatIsMeant) {
  const auto complaint = [](const std::vector<Judgement>& rows, const std::string& objective = "") {
    return strict_complaint(rows, tally_of(rows, 0, 0), objective);
  };
  EXPECT_EQ(complaint({judged(kRightForSum)}), "");
  EXPECT_THAT(complaint({judged(kRightForOne)}), HasSubstr("not right for mean"));
  EXPECT_EQ(complaint({judged(kRightForOne, "replicated")}, "replicated"), "");
  const std::vector<TrialResult> in_part = {result(kSum, Verdict::kMatch),
                                            result(kSum, Verdict::kSkipped)};
  EXPECT_THAT(complaint({judged(in_part)}), HasSubstr("not everything was tried"));
  EXPECT_THAT(
      complaint({judged({result(kSum, Verdict::kMatch), result(kSum, Verdict::kDisputed)})}),
      HasSubstr("not everything"));
  EXPECT_THAT(complaint({judged({result(kSum, Verdict::kSkipped)})}), HasSubstr("not everything"))
      << "not offered";
}

}  // namespace
}  // namespace distgrad
