// The diagnosis with the real simulator: what ranks with a known mistake would hold must be
// explained by that mistake, and its text must tell somebody who has not read our documents what to
// change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "compare/compare.h"
#include "diagnose/diagnose.h"
#include "diagnose/reach.h"
#include "diagnose/rewriting.h"
#include "diagnose/rule_texts.h"
#include "diagnose/separate.h"
#include "diagnose/sync_mistakes.h"
#include "gradients/objective_truths.h"
#include "rank/simulator.h"
#include "rules/rule.h"

namespace distgrad {
namespace {

using enum CollectiveKind;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<std::string> rules(const std::vector<Finding>& findings) {
  std::vector<std::string> names;
  for (const Finding& f : findings) names.push_back(f.rule);
  return names;
}

const Finding& named(const std::vector<Finding>& findings, const std::string& rule) {
  for (const Finding& f : findings)
    if (f.rule == rule) return f;
  throw std::out_of_range("no finding " + rule);
}

// Local inputs, unlike on all ranks, and unlike losses: what the ranks get wrong shows.
class World {
 public:
  explicit World(int ranks) {
    program_.world_size = ranks;
    which_.subject = "torch_nn";
  }

  World& input(const std::string& name, Shape shape, double step = 1) {
    Input in;
    in.name = name;
    in.layout = {{"", Layout{}}};
    std::vector<Array> by_rank;
    for (int r = 0; r < program_.world_size; ++r) {
      std::vector<double> values;
      for (std::int64_t i = 0; i < element_count(shape); ++i)
        values.push_back(1 + step * (3 * r + 2 * i + (i * r) % 4));
      by_rank.emplace_back(shape, values);
    }
    in.value = by_rank;
    program_.inputs.push_back(in);
    return *this;
  }
  // One tensor of which every rank holds a copy; `sync` by axis, "" the world.
  World& copies(const std::string& name, Shape shape, Layout::Kind kind,
                std::vector<std::pair<std::string, Input::Sync>> sync = {}) {
    Input in;
    in.name = name;
    in.layout = {{"", Layout{kind, 0}}};
    std::vector<double> values;
    for (std::int64_t i = 0; i < element_count(shape); ++i)
      values.push_back(1 + 0.5 * static_cast<double>(i));
    in.value = Array(shape, values);
    in.sync = std::move(sync);
    program_.inputs.push_back(in);
    return *this;
  }
  World& objective(Objective::Kind kind) {
    which_.objective.kind = kind;
    return *this;
  }
  World& group(const std::string& name, std::vector<std::vector<int>> lists) {
    program_.groups.push_back({name, std::move(lists), false});
    return *this;
  }
  World& step(const std::string& name, const std::string& text) {
    program_.steps.push_back({name, "", Expression{text, ""}});
    return *this;
  }
  World& call(const std::string& name, CollectiveKind kind, const std::string& operand,
              const std::function<void(CollectiveCall&)>& options = {}) {
    CollectiveCall c;
    c.kind = kind;
    c.operand = {operand, ""};
    if (options) options(c);
    program_.steps.push_back({name, "", c});
    return *this;
  }
  World& loss(const std::string& text) {
    program_.loss = {text, ""};
    return *this;
  }

  // What the ranks hold under these rules: by input, by rank.
  std::vector<GradientByRank> held(const Hypothesis& mistake) const {
    SimulateRequest request;
    request.program = program_;
    request.rules = rewrite(request.program, of_backward(mistake));
    request.weights = {backward_weights(program_, which_.objective, false)};
    request.leaves_by_rank = true;
    const Simulation s = simulate(request);
    if (s.invalid) throw std::runtime_error(s.invalid->message);
    std::vector<GradientByRank> gradients;
    for (const Gradient& g : s.gradients[0])
      gradients.push_back(after_sync(program_.inputs[gradients.size()], mistake, g.parts));
    return gradients;
  }

  GradientByRank after_sync(const Input& input, const Hypothesis& mistake,
                            const GradientByRank& shares) const {
    std::vector<SyncMistake> mistakes;
    for (const RuleChoice& choice : mistake)
      if (const auto m = sync_mistake_named(choice.rule); m && choice.step == input.name)
        mistakes.push_back(*m);
    return synchronised(program_, input, mistakes, shares).value();
  }

  DistributedRun run(const std::vector<GradientByRank>& gradients) const {
    DistributedRun run;
    for (int r = 0; r < program_.world_size; ++r) {
      RankResult rank;
      rank.loss = truth_.losses[static_cast<std::size_t>(r)];
      for (const GradientByRank& g : gradients)
        rank.gradients.push_back(g[static_cast<std::size_t>(r)]);
      for (const StepValue& step : truth_.steps)
        rank.steps.push_back(step.by_rank[static_cast<std::size_t>(r)]);
      run.ranks.push_back(std::move(rank));
    }
    return run;
  }

  std::vector<Finding> diagnosis(const std::vector<GradientByRank>& gradients,
                                 const Rerun& rerun = {}) {
    which_.world_size = program_.world_size;
    asked_.program = program_;
    asked_.weights = weights_to_ask(program_, which_.objective);
    truth_ = simulate(asked_);
    if (truth_.invalid) throw std::runtime_error(truth_.invalid->message);
    const DistributedRun run_of_ranks = run(gradients);
    const CaseComparison comparison = compare(which_, asked_, truth_, &run_of_ranks);
    return diagnose({which_, asked_, truth_, comparison}, simulate, rerun);
  }
  std::vector<Finding> diagnosis_of(const Hypothesis& mistake) { return diagnosis(held(mistake)); }

  const Program& program() const { return program_; }
  Case& which() { return which_; }

 private:
  Program program_;
  Case which_;
  SimulateRequest asked_;
  Simulation truth_;
};

World reduced(ReduceOp op = ReduceOp::kSum) {
  return World(4)
      .input("x", {2, 3})
      .call("y", kAllReduce, "x", [&](auto& c) { c.op = op; })
      .loss("((rank + 1) * y * (y + rank * rank)).sum()");
}
World gathered() {
  return World(4)
      .input("x", {2, 3})
      .call("y", kAllGather, "x * x")
      .loss("((rank + 1) * y * (y + rank * rank)).sum()");
}

TEST(Replayed, TheRightGradientsAreNotAccused) {
  for (World world : {reduced(), gathered(), reduced(ReduceOp::kProduct)})
    EXPECT_THAT(world.diagnosis_of({}), IsEmpty());
}

TEST(Replayed, OneRanksCotangentThatASumLacks) {
  for (World world : {reduced(), gathered()}) {
    const auto findings = world.diagnosis_of({{"y", "without:2"}});
    ASSERT_THAT(rules(findings), ElementsAre("missing-reduction"));
    EXPECT_THAT(findings[0].ranks, ElementsAre(2));
    EXPECT_EQ(findings[0].step, "y");
    EXPECT_THAT(findings[0].text, HasSubstr("lacks the cotangent of rank 2. Look for a detach"));
  }
}

TEST(Replayed, TheOwnCotangentThatASumLacks) {
  World world = gathered();
  const auto findings = world.diagnosis_of({{"y", "others_part"}});
  ASSERT_THAT(rules(findings), ElementsAre("missing-reduction"));
  EXPECT_THAT(findings[0].text, HasSubstr("left out the rank's own"));
}

TEST(Replayed, SlicesOfOtherRanks) {
  for (const std::string rule :
       {"next_slice", "previous_slice", "mirrored_slice", "first_slice", "own_slices_summed"}) {
    World world = gathered();
    const auto findings = world.diagnosis_of({{"y", rule}});
    ASSERT_THAT(rules(findings), ElementsAre("wrong-slice")) << rule;
    EXPECT_EQ(findings[0].collective, "all_gather");
  }
}

TEST(Replayed, AnotherRoot) {
  World world(3);
  world.input("x", {2})
      .call("y", kBroadcast, "x", [](auto& c) { c.root = 1; })
      .loss("((rank + 2) * y * y).sum()");
  const auto findings = world.diagnosis_of({{"y", "root:2"}});
  ASSERT_THAT(rules(findings), Contains("wrong-slice"));
  EXPECT_THAT(named(findings, "wrong-slice").text,
              HasSubstr("took rank 2 of the group for the root"));
}

TEST(Replayed, GlobalRanksTakenForThoseOfTheGroup) {
  World world(4);
  world.group("tp", {{2, 0}, {3, 1}});
  world.input("x", {2})
      .call("y", kAllGather, "x", [](auto& c) { c.group = "tp"; })
      .loss("((rank + 1) * y * (y + rank * rank)).sum()");
  const auto findings = world.diagnosis_of({{"y", "order:sorted"}});
  ASSERT_THAT(findings, Not(IsEmpty()));
  EXPECT_EQ(findings[0].rule, "group-rank");
  EXPECT_THAT(findings[0].text, HasSubstr("ascending order"));
}

TEST(Replayed, TheWorldInsteadOfTheGroup) {
  World world(4);
  world.group("tp", {{0, 1}, {2, 3}}).group("dp", {{0, 2}, {1, 3}});
  world.input("x", {2})
      .call("y", kAllReduce, "x", [](auto& c) { c.group = "tp"; })
      .loss("((rank + 1) * y * (y + rank * rank)).sum()");
  const auto world_wide = world.diagnosis_of({{"y", "group:world"}});
  ASSERT_THAT(rules(world_wide), ElementsAre("wrong-group"));
  EXPECT_THAT(world_wide[0].text,
              HasSubstr("ran over the whole world instead of the call's own group"));
  const auto other = world.diagnosis_of({{"y", "group:dp"}});
  ASSERT_THAT(rules(other), ElementsAre("wrong-group"));
  EXPECT_THAT(other[0].text, HasSubstr("over the group dp"));
}

// The cotangent of the transposed y lies in memory as y does.
TEST(Replayed, ACotangentReadAsIfItWereContiguous) {
  World world(3);
  world.input("x", {2, 3})
      .call("y", kAllReduce, "x")
      .loss("(y.t() @ torch.ones([2, 1])).sum() + ((y.t() * y.t().flip([0])) * (rank + 1)).sum()");
  const auto held = world.held({{"y", "as_stored"}});
  const auto findings = world.diagnosis(held);
  EXPECT_THAT(rules(findings), Contains("contiguity"));
  EXPECT_THAT(named(findings, "contiguity").text, HasSubstr(".contiguous()"));
}

TEST(Replayed, ACotangentThatIsWrittenOver) {
  World world(3);
  // The sum hands one cotangent to y and to w.
  world.input("x", {2})
      .input("w", {2})
      .call("y", kAllReduce, "x")
      .step("s", "y + w")
      .loss("((rank + 1) * s * s).sum()");
  const auto findings = world.diagnosis_of({{"y", "overwritten"}});
  ASSERT_THAT(rules(findings), ElementsAre("stale-or-aliased"));
  EXPECT_THAT(findings[0].text, HasSubstr("Clone the cotangent first"));
}

TEST(Replayed, ANarrowerDtypeIsToldWithItsStep) {
  World world(3);
  world.input("x", {3}, 0.1)
      .call("y", kAllReduce, "x")
      .loss("((rank + 1) * torch.sin(y) * y).sum()");
  const auto findings = world.diagnosis_of({{"y", "in_bfloat16"}});
  ASSERT_THAT(rules(findings), ElementsAre("precision"));
  EXPECT_EQ(findings[0].step, "y");
  EXPECT_THAT(findings[0].text, HasSubstr("went through bfloat16"));
}

// One part in a hundred is within what bfloat16 may do, but not in every element by the same factor
// and not through a cast.
TEST(Replayed, WhatIsMerelyNearIsNotNamed) {
  World world(3);
  world.input("x", {3}, 0.1)
      .call("y", kAllReduce, "x")
      .loss("((rank + 1) * torch.sin(y) * y).sum()");
  auto held = world.held({});
  std::vector<double> values(held[0][1]->values().begin(), held[0][1]->values().end());
  values[1] *= 1.03;
  held[0][1] = Array({3}, values);
  EXPECT_THAT(rules(world.diagnosis(held)), ElementsAre("unexplained"));
}

TEST(Replayed, TiesOfEveryReduction) {
  for (const auto& [kind, rule] : {std::pair{kAllReduce, "full_to_ties"},
                                   {kReduce, "all_to_each_tie"},
                                   {kReduceScatter, "all_to_each_tie"},
                                   {kAllReduce, "all_to_first_tie"},
                                   {kReduce, "all_to_first_tie"}}) {
    World world(3);
    // Ranks 0 and 1 tie where the sine is clamped away, rank 2 lies below.
    world.input("x", {3}).step(
        "t", "x * (rank + 1) * 0.01 if rank == 2 else (x - x.detach()) * (rank + 1) + 5");
    world.call("y", kind, "t", [](auto& c) { c.op = ReduceOp::kMax; })
        .loss("((rank + 1) * y * (y + rank * rank)).sum()");
    const auto findings = world.diagnosis_of({{"y", rule}});
    EXPECT_THAT(rules(findings), Contains("tie")) << rule << " " << traits(kind).name;
  }
}

TEST(Replayed, AZeroInAProduct) {
  for (const CollectiveKind kind : {kAllReduce, kReduce, kReduceScatter}) {
    World world(3);
    world.input("x", {3}).call("y", kind, "x - 1", [](auto& c) { c.op = ReduceOp::kProduct; });
    world.loss("((rank + 1) * (y + 2) * (y + 3)).sum()");
    const auto findings = world.diagnosis_of({{"y", "total_out_over_x_or_0"}});
    ASSERT_THAT(findings, Not(IsEmpty()));
    EXPECT_EQ(findings[0].rule, "zero-input");
    EXPECT_THAT(findings[0].text, HasSubstr("gave 0 where the operand is 0"));
  }
}

TEST(Replayed, TwoCollectivesThatGoByTwoRulesSideBySide) {
  World world(3);
  world.input("x", {3})
      .input("w", {3})
      .call("y", kAllReduce, "x * x")
      .call("z", kAllGather, "w * w");
  world.loss("((rank + 1) * y * y).sum() + ((rank + 2) * z * z).sum()");
  const auto findings = world.diagnosis_of({{"y", "divided"}, {"z", "next_slice"}});
  EXPECT_THAT(rules(findings), testing::UnorderedElementsAre("scaled", "wrong-slice"));
  EXPECT_EQ(named(findings, "wrong-slice").step, "z");
  EXPECT_EQ(named(findings, "scaled").step, "y");
}

TEST(Replayed, TwoCollectivesThatGoByTwoRulesOneBehindTheOther) {
  World world(3);
  world.input("x", {3}).call("y", kAllReduce, "x * x", [](auto& c) { c.op = ReduceOp::kAvg; });
  world.call("z", kAllGather, "y * (rank + 1)").loss("((rank + 1) * z * (z + rank)).sum()");
  const auto findings = world.diagnosis_of({{"y", "identity"}, {"z", "own_slice"}});
  EXPECT_THAT(rules(findings),
              testing::AllOf(Contains("identity-backward"), Contains("own-slice")));
}

TEST(Replayed, ABufferThatTwoCallsReturn) {
  World world(3);
  world.input("x", {3})
      .input("w", {3})
      .step("a", "3 * x")
      .step("b", "2 * w")
      .call("y", kAllReduce, "a")
      .call("z", kAllReduce, "b")
      .loss("((rank + 1) * (y * y + z * z * z)).sum()");
  // z's backward comes first, and what it left for b is y's when b reads it.
  auto held = world.held({});
  for (std::size_t r = 0; r < 3; ++r) {
    std::vector<double> values;
    for (const double v : held[0][r]->values()) values.push_back(v / 3 * 2);
    held[1][r] = Array({3}, values);
  }
  const auto findings = world.diagnosis(held);
  ASSERT_THAT(rules(findings), ElementsAre("stale-or-aliased"));
  EXPECT_EQ(findings[0].step, "z");
  EXPECT_THAT(findings[0].text, HasSubstr("what the backward of step y gives"));
}

// --- What comes after backward ---

World trained(Layout::Kind kind, std::vector<std::pair<std::string, Input::Sync>> sync) {
  World world(4);
  world.group("left", {{0, 1}, {2, 3}});
  world.copies("w", {2}, kind, std::move(sync))
      .copies("b", {2}, Layout::Kind::kReplicate)
      .input("x", {2})
      .loss("((rank + 1) * (w * x + b) * (w * x + b)).sum()");
  return world;
}

TEST(Sync, EveryMistakeIsNamedWithItsInput) {
  for (const Input::Sync how : {Input::Sync::kSum, Input::Sync::kMean})
    for (const Layout::Kind kind : {Layout::Kind::kReplicate, Layout::Kind::kInvariant}) {
      const bool is_declared = kind == Layout::Kind::kReplicate;
      if (!is_declared && how == Input::Sync::kMean) continue;
      World world =
          trained(kind, is_declared ? decltype(Input::sync){{"", how}} : decltype(Input::sync){});
      world.objective(how == Input::Sync::kMean ? Objective::Kind::kMean : Objective::Kind::kSum);
      const Input& w = world.program().inputs[0];
      const auto mistakes = sync_mistakes_of(world.program(), w);
      EXPECT_GE(mistakes.size(), 11u);  // 3 or 4 of the whole, a group, 4 ranks twice
      for (const std::string& mistake : mistakes) {
        const auto findings = world.diagnosis_of({{"w", mistake}});
        const SyncMistake m = *sync_mistake_named(mistake);
        ASSERT_THAT(findings, Not(IsEmpty())) << mistake;
        EXPECT_THAT(rules(findings), Contains(std::string(finding_of(m.kind)))) << mistake;
        EXPECT_THAT(findings[0].text, HasSubstr(text_of(world.program(), w, m, "w"))) << mistake;
      }
    }
}

TEST(Sync, SeveralInputsThatShareAMistakeAreToldTogether) {
  World world(3);
  world.copies("w", {2}, Layout::Kind::kReplicate, {{"", Input::Sync::kSum}})
      .copies("b", {2}, Layout::Kind::kReplicate, {{"", Input::Sync::kSum}})
      .input("x", {2})
      .loss("((rank + 1) * (w * x + b) * (w * x + b)).sum()");
  const auto findings = world.diagnosis_of({{"w", "sync:forgotten:"}, {"b", "sync:forgotten:"}});
  ASSERT_THAT(rules(findings),
              testing::AllOf(Contains("missing-reduction"), Contains("unsynchronised")));
  EXPECT_EQ(findings[0].rule, "missing-reduction");
  EXPECT_THAT(findings[0].text, HasSubstr("its own share of the gradient of w and b alone"));
}

TEST(Sync, BesideAWrongBackwardBothAreNamed) {
  World world(3);
  world.copies("w", {2}, Layout::Kind::kReplicate, {{"", Input::Sync::kSum}})
      .input("x", {2})
      .call("y", kAllReduce, "w * x")
      .loss("((rank + 1) * y * (y + rank)).sum()");
  const auto findings = world.diagnosis_of({{"y", "identity"}, {"w", "sync:without::1"}});
  EXPECT_THAT(rules(findings),
              testing::AllOf(Contains("identity-backward"), Contains("missing-reduction")));
  EXPECT_THAT(named(findings, "missing-reduction").ranks, ElementsAre(1));
}

// What the file says is at fault: every rank does as it is told.
TEST(Sync, AFileThatReducesOtherwiseThanTheObjectiveAsksFor) {
  World averaged = trained(Layout::Kind::kReplicate, {{"", Input::Sync::kMean}});
  const auto findings = averaged.diagnosis_of({});  // the objective is the sum
  ASSERT_THAT(findings, Not(IsEmpty()));
  EXPECT_EQ(findings[0].rule, "scaled");
  EXPECT_THAT(findings[0].text, HasSubstr("Write \"sync\": { \"w\": \"sum\" }"));

  // Each rank has all of it before.
  World twice(3);
  twice.objective(Objective::Kind::kReplicated);
  twice.copies("w", {2}, Layout::Kind::kReplicate, {{"", Input::Sync::kSum}}).loss("(w * w).sum()");
  const auto again = twice.diagnosis_of({});
  ASSERT_THAT(again, Not(IsEmpty()));
  EXPECT_EQ(again[0].rule, "double-reduction");
  EXPECT_THAT(again[0].text, HasSubstr("the layout \"invariant\""));
}

TEST(Sync, ALocalInputHasNone) {
  World world = reduced();
  EXPECT_THAT(sync_mistakes_of(world.program(), world.program().inputs[0]), IsEmpty());
}

// --- Telling explanations apart ---

TEST(Separating, WhatAProgramTellsApart) {
  const std::vector<Hypothesis> rivals = {{{"y", "identity"}}, {{"y", "divided"}}};
  World alike(3);
  alike.copies("x", {}, Layout::Kind::kReplicate).call("y", kAllReduce, "x").loss("y * y");
  const auto none = separation(alike.program(), {}, false, rivals, simulate);
  ASSERT_TRUE(none);
  EXPECT_EQ(none->kinds, 1u);
  EXPECT_THAT(none->of, ElementsAre(0, 0));
  EXPECT_THAT(none->telling, IsEmpty());
  World unlike(3);
  unlike.copies("x", {}, Layout::Kind::kReplicate)
      .call("y", kAllReduce, "x")
      .loss("(rank + 1) * y * y");
  const auto both = separation(unlike.program(), {}, false, rivals, simulate);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->kinds, 2u);
  ASSERT_EQ(both->telling.size(), 1u);
  EXPECT_FALSE(separation(unlike.program(), {}, false, {{{"nowhere", "root:1"}}}, simulate));
}

TEST(Replayed, WhatNothingExplainsIsLocalised) {
  World world(3);
  world.input("x", {3})
      .input("w", {3})
      .call("a", kAllReduce, "x")
      .call("b", kAllReduce, "a * a")
      .step("c", "b * w");
  world.call("d", kAllReduce, "w * w").loss("((rank + 1) * c * c).sum() + d.sum()");
  auto held = world.held({});
  for (auto& g : held[0]) g = Array({3}, {1, 20, 3});
  const auto findings = world.diagnosis(held);
  ASSERT_THAT(rules(findings), ElementsAre("unexplained"));
  // Both a and b lie on x's only way; backward comes to b first. d has nothing to do with x.
  EXPECT_EQ(findings[0].step, "b");
  EXPECT_THAT(findings[0].text,
              HasSubstr("step b (all_reduce) is the first place where they can part"));
}

TEST(Replayed, ASecondRunThatDiffersIsNondeterministic) {
  World world = reduced();
  auto held = world.held({});
  held[0][1] = Array({2, 3}, {9, 8, 7, 6, 5, 4});
  const auto first = held;
  int runs = 0;
  const Rerun otherwise = [&](const Program&) {
    ++runs;
    held[0][1] = Array({2, 3}, {1, 8, 7, 6, 5, 4});
    return world.run(held);
  };
  const auto findings = world.diagnosis(first, otherwise);
  ASSERT_THAT(rules(findings), ElementsAre("nondeterministic"));
  EXPECT_THAT(findings[0].ranks, ElementsAre(1));
  EXPECT_EQ(runs, 1);
  const Rerun the_same = [&](const Program&) { return world.run(first); };
  EXPECT_THAT(rules(world.diagnosis(first, the_same)), ElementsAre("unexplained"));
  const Rerun fails = [&](const Program&) { return std::nullopt; };
  EXPECT_THAT(rules(world.diagnosis(first, fails)), ElementsAre("unexplained"));
}

TEST(Replayed, WhatMemoryOfItsOwnMendsIsAliased) {
  World world = reduced();
  const auto right = world.held({});
  auto held = right;
  held[0][3] = Array({2, 3}, {9, 8, 7, 6, 5, 4});
  // Both rewritings add a step.
  const Rerun mended = [&](const Program& program) {
    return world.run(program.steps.size() > world.program().steps.size() ? right : held);
  };
  const auto findings = world.diagnosis(held, mended);
  ASSERT_THAT(rules(findings), ElementsAre("stale-or-aliased"));
  EXPECT_EQ(findings[0].step, "y");
}

TEST(Replayed, WhatAContiguousCotangentMendsIsContiguity) {
  World world = reduced();
  const auto right = world.held({});
  auto held = right;
  held[0][3] = Array({2, 3}, {9, 8, 7, 6, 5, 4});
  const Rerun mended_by_contiguity = [&](const Program& program) {
    const Expression* last = std::get_if<Expression>(&program.steps.back().what);
    return world.run(last && last->text.find("reshape") != std::string::npos ? right : held);
  };
  const auto findings = world.diagnosis(held, mended_by_contiguity);
  ASSERT_THAT(rules(findings), ElementsAre("contiguity"));
  EXPECT_EQ(findings[0].step, "y");
}

TEST(Replayed, AWorldOfOneRankNamesNoRuleOfSeveral) {
  World world(1);
  world.input("x", {3}).call("y", kAllReduce, "x").loss("(y * y).sum()");
  auto held = world.held({});
  for (auto& g : held[0]) g = Array({3}, {1, 20, 3});
  EXPECT_THAT(rules(world.diagnosis(held)), ElementsAre("unexplained"));
}

// As Gloo's ring does: in each element another run of the ranks' cotangents.
TEST(Replayed, PartialSumsOffRootAreLeftInTheBuffer) {
  World world(3);
  world.input("x", {3})
      .call("y", kBroadcast, "x", [](auto& c) { c.root = 1; })
      .loss("((rank + 1) * y * (y + rank * rank)).sum()");
  auto held = world.held({});
  const auto own = world.held({{"y", "identity"}});  // each rank's cotangent
  const auto part = [&](int rank, int element) { return own[0][rank]->values()[element]; };
  held[0][0] =
      Array({3}, {part(0, 0), part(0, 1) + part(2, 1), part(0, 2) + part(1, 2) + part(2, 2)});
  held[0][2] = Array({3}, {part(1, 0) + part(2, 0), part(2, 1), part(2, 2)});
  const auto findings = world.diagnosis(held);
  ASSERT_THAT(rules(findings), ElementsAre("stale-or-aliased"));
  EXPECT_EQ(findings[0].step, "y");
  held[0][2] = Array({3}, {part(1, 0) + part(2, 0), part(2, 1) + 1, part(2, 2)});
  EXPECT_THAT(rules(world.diagnosis(held)), ElementsAre("unexplained"));
}

// Off root the cotangent is zero: the adjoint with another root would give zeros as well, as would
// a cut.
TEST(Replayed, ZerosAreOnlyToldAsAPathThatIsCut) {
  World world(3);
  world.input("x", {2}).call("y", kReduce, "x").loss("((rank + 1) * y * y).sum()");
  auto held = world.held({});
  for (auto& g : held[0]) g = Array({2}, {0, 0});
  EXPECT_THAT(rules(world.diagnosis(held)), ElementsAre("missing-reduction", "scaled"));
}

// Within what bfloat16 may do to any number, but what a cast would do is further off than the truth
// itself.
TEST(Replayed, ASmallFactorIsNoRounding) {
  World world(3);
  world.input("x", {3}, 0.1)
      .call("y", kAllReduce, "x")
      .loss("((rank + 1) * torch.sin(y) * y).sum()");
  auto held = world.held({});
  for (auto& g : held[0]) {
    std::vector<double> values(g->values().begin(), g->values().end());
    for (double& v : values) v *= 1.00001;
    g = Array({3}, values);
  }
  EXPECT_THAT(rules(world.diagnosis(held)), ElementsAre("scaled"));
}

// --- The tables ---

TEST(Tables, EveryRuleIsComputedAndHasItsWords) {
  for (const BackwardRuleRow& row : backward_rules()) {
    EXPECT_NE(rule_named(row.name), nullptr) << row.name;
    if (row.finding.empty()) continue;
    EXPECT_FALSE(text_of_rule(row.name).remedy.empty()) << row.name;
  }
}

TEST(Tables, EveryRuleTakesTheCallsThatItMayExplain) {
  Program program;
  program.world_size = 3;
  for (const CollectiveTraits& t : kCollectives)
    for (int op = 0; op < (t.takes_op ? 6 : 1); ++op) {
      CollectiveCall call;
      call.kind = t.kind;
      call.op = static_cast<ReduceOp>(op);
      for (const BackwardRuleRow& row : backward_rules())
        EXPECT_TRUE(!may_explain(row, call, program) || rule_named(row.name)->applies(call))
            << row.name << " " << t.name;
    }
}

// --- Rewriting ---

TEST(Rewriting, ChangesNoForwardValue) {
  World world(4);
  world.group("tp", {{2, 0}, {3, 1}});
  world.input("x", {2, 2});
  for (const auto& [name, kind] :
       {std::pair{"a", kAllReduce}, {"b", kBroadcast}, {"c", kAllGather}, {"d", kAllToAll}})
    world.call(name, kind, "x", [](auto& c) { c.group = "tp"; });
  world.loss("a.sum() + b.sum() + c.sum() + d.sum()");
  SimulateRequest plain;
  plain.program = world.program();
  plain.weights = {{1, 1, 1, 1}};
  const Simulation right = simulate(plain);
  for (const Step& step : world.program().steps)
    for (const std::string& rewriting : rewritings_of(world.program(), step)) {
      SimulateRequest request = plain;
      EXPECT_THAT(rewrite(request.program, {{step.name, rewriting}}), IsEmpty());
      const Simulation s = simulate(request);
      if (s.invalid) continue;  // other shapes over another group
      EXPECT_EQ(s.losses, right.losses) << step.name << " " << rewriting;
    }
}

TEST(Rewriting, ContiguousOperandsAndCotangentsChangeNoGradient) {
  World world(3);
  world.input("x", {2, 3})
      .call("y", kAllReduce, "x.t()")
      .loss("((rank + 1) * y.t() * y.t()).sum() + y[0].sum()");
  SimulateRequest plain;
  plain.program = world.program();
  plain.weights = {{1, 1, 1}};
  SimulateRequest contiguous = plain;
  rewrite(contiguous.program, {{"y", "contiguous:"}});
  const Simulation a = simulate(plain), b = simulate(contiguous);
  ASSERT_FALSE(b.invalid) << b.invalid->message;
  for (int r = 0; r < 3; ++r) {
    const auto one = a.gradients[0][0].parts[r]->values(),
               other = b.gradients[0][0].parts[r]->values();
    EXPECT_TRUE(std::equal(one.begin(), one.end(), other.begin()));
  }
}

TEST(Rewriting, OnlyWhatTheOtherGroupHasIsProposed) {
  Program program;
  program.world_size = 4;
  program.groups = {{"big", {{0, 1, 2, 3}}, false}, {"small", {{0, 1}, {2, 3}}, false}};
  CollectiveCall call;
  call.kind = kBroadcast;
  call.group = "big";
  call.root = 3;
  program.steps = {{"y", "", call}};
  EXPECT_THAT(rewritings_of(program, program.steps[0]),
              Not(Contains("group:small")));  // it has no rank 3
  std::get<CollectiveCall>(program.steps[0].what).root = 1;
  EXPECT_THAT(rewritings_of(program, program.steps[0]), Contains("group:small"));
  EXPECT_THROW(rewrite(program, {{"z", "root:1"}}), std::invalid_argument);
}

TEST(Reach, FollowsNamesToTheLoss) {
  World world(2);
  world.input("x", {1})
      .input("xx", {1})
      .call("y", kAllReduce, "x")
      .call("z", kAllReduce, "xx + y")
      .call("dead", kAllReduce, "x");
  world.loss("z.sum()");
  const Reach reach(world.program());
  EXPECT_THAT(reach.inputs_behind("y"), ElementsAre(0));  // xx is another name
  EXPECT_THAT(reach.inputs_behind("z"), ElementsAre(0, 1));
  EXPECT_THAT(reach.inputs_behind("dead"), IsEmpty());
}

}  // namespace
}  // namespace distgrad
