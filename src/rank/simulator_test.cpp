// The oracle on whole programs: hand-derived gradients for every layout, objective weights,
// replayed rules, what is refused.
#include "rank/simulator.h"

#include <gtest/gtest.h>

#include <numeric>

#include "model/libraries.h"

namespace distgrad {
namespace {

Expression text(const std::string& t, const std::string& pointer = "/somewhere") {
  return Expression{t, pointer};
}

Layout::Kind kind_named(const std::string& layout) {
  if (layout == "replicate") return Layout::Kind::kReplicate;
  return layout == "shard" ? Layout::Kind::kShard : Layout::Kind::kLocal;
}

struct ProgramBuilder {
  Program p;

  explicit ProgramBuilder(int world_size) { p.world_size = world_size; }
  ProgramBuilder& input(const std::string& name, Array value, const std::string& layout = "local") {
    Input in;
    in.name = name;
    in.value = std::move(value);
    in.layout = {{"", Layout{kind_named(layout), 0}}};
    p.inputs.push_back(in);
    return *this;
  }
  ProgramBuilder& expression(const std::string& name, const std::string& t) {
    p.steps.push_back(Step{name, "/steps/" + std::to_string(p.steps.size()), text(t)});
    return *this;
  }
  ProgramBuilder& call(const std::string& name, CollectiveKind kind, const std::string& operand,
                       ReduceOp op = ReduceOp::kSum) {
    CollectiveCall c;
    c.kind = kind;
    c.operand = text(operand);
    c.op = op;
    p.steps.push_back(Step{name, "/steps/" + std::to_string(p.steps.size()), c});
    return *this;
  }
  ProgramBuilder& loss(const std::string& t) {
    p.loss = text(t, "/loss");
    return *this;
  }
};

std::vector<double> values(const Gradient& g) {
  std::vector<double> out;
  for (const auto& part : g.parts)
    out.insert(out.end(), part->values().begin(), part->values().end());
  return out;
}

Simulation simulated(const Program& p, std::vector<std::vector<double>> weights,
                     std::vector<RuleChoice> rules = {}) {
  SimulateRequest request;
  request.program = p;
  request.weights = std::move(weights);
  request.rules = std::move(rules);
  return simulate(request);
}

using Values = std::vector<double>;

Program debate() {
  return ProgramBuilder(2)
      .input("x", Array::scalar(1))
      .expression("xx", "(rank + 2) * x")
      .call("y", CollectiveKind::kAllReduce, "xx")
      .loss("y * y")
      .p;
}

TEST(Simulator, SettlesTheDebate) {
  const Simulation s = simulated(debate(), {{1, 1}, {0.5, 0.5}, {1, 0}, {0, 1}});
  ASSERT_FALSE(s.invalid) << s.invalid->message;
  EXPECT_EQ(s.losses, (Values{25, 25}));
  EXPECT_EQ(values(s.gradients[0][0]), (Values{40, 60}));
  EXPECT_EQ(values(s.gradients[1][0]), (Values{20, 30}));
  EXPECT_EQ(values(s.gradients[2][0]), (Values{20, 30}));
  EXPECT_TRUE(s.exact);
  EXPECT_EQ(values(s.bounds[0]), (Values{0, 0}));
}

TEST(Simulator, BoundsHoldForTheWeightsThatRanksStartWith) {
  // Replicated on three ranks: the truth is exact, but `reference` starts from thirds, which round.
  Program p = ProgramBuilder(3)
                  .input("x", Array({2}, {1, 2}))
                  .call("y", CollectiveKind::kAllReduce, "(x * x).sum() * (rank + 1)")
                  .loss("7 * y")
                  .p;
  SimulateRequest request;
  request.program = p;
  request.weights = {{1, 0, 0}};
  EXPECT_TRUE(simulate(request).exact);
  request.run_weights = {{1.0 / 3, 1.0 / 3, 1.0 / 3}};
  const Simulation s = simulate(request);
  EXPECT_FALSE(s.exact);
  EXPECT_EQ(values(s.gradients[0][0]), (Values{14, 28, 28, 56, 42, 84}));
  for (const double bound : values(s.bounds[0])) {
    EXPECT_GT(bound, 0);
    EXPECT_LT(bound, 1e-12);
  }
}

TEST(Simulator, ReplaysARule) {
  EXPECT_EQ(values(simulated(debate(), {{1, 1}}, {{"y", "identity"}}).gradients[0][0]),
            (Values{20, 30}));
  EXPECT_EQ(values(simulated(debate(), {{1, 1}}, {{"y", "adjoint"}}).gradients[0][0]),
            (Values{40, 60}));
  EXPECT_EQ(values(simulated(debate(), {{1, 1}}, {{"y", "divided"}}).gradients[0][0]),
            (Values{20, 30}));
  EXPECT_EQ(values(simulated(debate(), {{1, 1}}, {{"y", "none"}}).gradients[0][0]), (Values{0, 0}));
}

TEST(Simulator, ReplayingTheAdjointChangesNothing) {
  for (const CollectiveTraits& t : kCollectives) {
    SCOPED_TRACE(std::string(t.name));
    Program p = ProgramBuilder(3)
                    .input("x", Array({3, 2}, {1, 2, 3, 4, 5, 6}))
                    .expression("xx", "x * (rank + 1) + rank * x * x")
                    .call("y", t.kind, "xx")
                    .loss("(y * y).sum() * (rank + 1)")
                    .p;
    if (t.takes_pairs) std::get<CollectiveCall>(p.steps[1].what).pairs = {{0, 1}, {1, 2}, {0, 0}};
    const Simulation plain = simulated(p, {{1, 2, 3}});
    const Simulation replayed = simulated(p, {{1, 2, 3}}, {{"y", "adjoint"}});
    ASSERT_FALSE(plain.invalid) << plain.invalid->message;
    EXPECT_EQ(values(plain.gradients[0][0]), values(replayed.gradients[0][0]));
  }
}

TEST(Simulator, SumsTheCopiesOfAReplicatedInput) {
  Program p = debate();
  p.inputs[0].layout = {{"", Layout{Layout::Kind::kReplicate, 0}}};
  EXPECT_EQ(values(simulated(p, {{1, 1}}).gradients[0][0]), (Values{100}));
  SimulateRequest by_rank;
  by_rank.program = p;
  by_rank.weights = {{1, 1}};
  by_rank.leaves_by_rank = true;
  EXPECT_EQ(values(simulate(by_rank).gradients[0][0]), (Values{40, 60}));
}

TEST(Simulator, CutsAShardAsChunkDoes) {
  // Five rows on four ranks: 2, 2, 1, 0.
  Program p = ProgramBuilder(4)
                  .input("w", Array({5}, {1, 2, 3, 4, 5}), "shard")
                  .expression("part", "(w * w * (rank + 1)).sum()")
                  .call("y", CollectiveKind::kAllReduce, "part")
                  .loss("y")
                  .p;
  const Simulation s = simulated(p, {{1, 0, 0, 0}});
  ASSERT_FALSE(s.invalid) << s.invalid->message;
  EXPECT_EQ(s.losses[0], 1 + 4 + 2 * (9 + 16) + 3 * 25);
  EXPECT_EQ(values(s.gradients[0][0]), (Values{2, 4, 12, 16, 30}));
}

TEST(Simulator, LaysOutAMeshWithTheLastAxisFastest) {
  ProgramBuilder b(4);
  b.p.groups = {Group{"dp", {{0, 2}, {1, 3}}, true}, Group{"tp", {{0, 1}, {2, 3}}, true}};
  b.input("w", Array({2}, {10, 20})).loss("w.sum() * (rank + 1)");
  b.p.inputs[0].layout = {{"dp", Layout{Layout::Kind::kReplicate, 0}},
                          {"tp", Layout{Layout::Kind::kShard, 0}}};
  const Simulation s = simulated(b.p, {{1, 1, 1, 1}});
  ASSERT_FALSE(s.invalid) << s.invalid->message;
  EXPECT_EQ(s.losses, (Values{10, 40, 30, 80}));
  EXPECT_EQ(values(s.gradients[0][0]), (Values{1 + 3, 2 + 4}));
}

TEST(Simulator, LossesOfWeightZeroTakeNoPart) {
  // The square root's slope at rank 1 is infinite; only rank 0's loss is meant.
  Program p = ProgramBuilder(2).input("x", Array::scalar(4)).loss("torch.sqrt(x * (1 - rank))").p;
  EXPECT_EQ(values(simulated(p, {{1, 0}}).gradients[0][0]), (Values{0.25, 0}));
}

TEST(Simulator, ComparesWithOneDevice) {
  Program p = debate();
  p.single_device = SingleDevice{{Step{"t", "/single_device/steps/0", text("2 * x[0] + 3 * x[1]")}},
                                 text("2 * t * t")};
  const Simulation s = simulated(p, {{1, 1}});
  ASSERT_FALSE(s.invalid) << s.invalid->message;
  EXPECT_EQ(s.single_loss, 50);
  EXPECT_EQ(values(s.single_gradients[0]), (Values{40, 60}));
}

TEST(Simulator, EvaluatesTheFilesTruth) {
  Program p = debate();
  p.truth = {{"x", "/truth/x", text("4 * 5 * (rank + 2) / 2 * 1")}};
  EXPECT_EQ(values(simulated(p, {{1, 1}}).file_truth[0]), (Values{20, 30}));
}

TEST(Simulator, LeavesBoundsOfVeryManyElementsOutWhereTheyMayWait) {
  SimulateRequest request;
  request.program = ProgramBuilder(2).loss("y.sum()").p;
  Input x;
  x.name = "x";
  x.value = text("torch.ones(600000) / 3");  // how many there are, the text does not say
  x.layout = {{"", Layout{Layout::Kind::kLocal, 0}}};
  request.program.inputs = {x};
  CollectiveCall sum;
  sum.kind = CollectiveKind::kAllReduce;
  sum.operand = text("x");
  request.program.steps = {Step{"y", "/steps/0", sum}};
  request.weights = {{1, 1}};
  const auto has_bounds = [&] { return !simulate(request).bounds.empty(); };
  EXPECT_TRUE(has_bounds());
  request.bounds_may_wait = true;
  EXPECT_FALSE(has_bounds());
  request.program.inputs[0].value = text("torch.ones(400000) / 3");
  EXPECT_TRUE(has_bounds());
  request.program.inputs[0].value = text("torch.ones(3000) / 3");
  request.program.loss = text("(y * y[:800].reshape([800, 1])).sum()");
  EXPECT_FALSE(has_bounds()) << "2,400,000 products";
}

TEST(Simulator, SaysWhatItRefuses) {
  Program p = debate();
  p.loss = text("torch.stack([y, y])", "/loss");
  Simulation s = simulated(p, {{1, 1}});
  ASSERT_TRUE(s.invalid);
  EXPECT_EQ(s.invalid->pointer, "/loss");
  EXPECT_NE(s.invalid->message.find("the loss has 2 elements (shape [2] on rank 0)"),
            std::string::npos);

  p = ProgramBuilder(2)
          .input("x", Array::scalar(1))
          .expression("v", "torch.ones(rank + 1) * x")
          .call("y", CollectiveKind::kAllReduce, "v")
          .loss("y.sum()")
          .p;
  s = simulated(p, {{1, 1}});
  ASSERT_TRUE(s.invalid);
  EXPECT_EQ(s.invalid->pointer, "/steps/1");
  EXPECT_NE(s.invalid->message.find("rank 0 [1], rank 1 [2]"), std::string::npos);
}

TEST(Simulator, JudgesOnlyForwardWhereANaNIsAmongTheExtremes) {
  Program p = ProgramBuilder(2)
                  .input("x", Array::scalar(std::nan("")))
                  .call("y", CollectiveKind::kAllReduce, "x", ReduceOp::kMax)
                  .loss("y")
                  .p;
  EXPECT_NE(simulated(p, {{1, 1}}).forward_only, "");
}

TEST(Simulator, TakesHundredsOfRanks) {
  Program p = debate();
  p.world_size = 512;
  const Simulation s = simulated(p, {std::vector<double>(512, 1.0)});
  ASSERT_FALSE(s.invalid) << s.invalid->message;
  const double y = 512 * 511 / 2 + 2 * 512;
  EXPECT_EQ(s.losses[17], y * y);
  EXPECT_EQ((*s.gradients[0][0].parts[3])[0], 2 * y * 512 * 5);
}

FiniteDifferences::Answer differences(const Program& p, std::vector<RuleChoice> rules = {}) {
  SimulateRequest request;
  request.program = p;
  request.weights = {std::vector<double>(static_cast<std::size_t>(p.world_size), 1.0)};
  request.rules = std::move(rules);
  request.with_differences = true;
  const Simulation s = simulate(request);
  EXPECT_FALSE(s.invalid) << s.invalid->message;
  return s.differences.answer;
}

TEST(SimulatorTest, FiniteDifferencesTellAWrongBackwardFromARightOne) {
  ProgramBuilder builder(3);
  builder.input("x", Array({2, 2}, {1, -2, 0, 4})).input("w", Array({5}, {1, 2, 3, 4, 5}), "shard");
  builder.expression("a", "(rank + 2) * x.sin() + w.sum()")
      .call("y", CollectiveKind::kAllReduce, "a");
  builder.loss("(y * y * (rank + 1)).sum()");
  EXPECT_EQ(differences(builder.p), FiniteDifferences::Answer::kAgree);
  EXPECT_EQ(differences(builder.p, {{"y", "identity"}}), FiniteDifferences::Answer::kDisagree);
}

TEST(SimulatorTest, FiniteDifferencesDoNotJudgeWhatIsMeant) {
  const auto program = [](const std::string& loss) {
    return ProgramBuilder(2).input("x", Array({2}, {0, 3})).loss(loss).p;
  };
  EXPECT_EQ(differences(program("(x * x.detach()).sum()")), FiniteDifferences::Answer::kNotAsked);
  EXPECT_EQ(differences(program("(x * x.sum().item()).sum()")),
            FiniteDifferences::Answer::kNotAsked);
  EXPECT_EQ(differences(program("torch.relu(x).sum()")), FiniteDifferences::Answer::kNotAsked)
      << "a kink at 0";
  EXPECT_EQ(differences(program("(x * torch.full([2], float(x.sum()))).sum()")),
            FiniteDifferences::Answer::kNotAsked);
  EXPECT_EQ(differences(program("(x.round() * x).sum()")), FiniteDifferences::Answer::kAgree);
}

TEST(SimulatorTest, ANameIsNoCall) {
  ProgramBuilder builder(2);
  builder.input("items", Array({2}, {1, 3}))
      .call("detached", CollectiveKind::kAllReduce, "items")
      .loss("(detached * detached).sum()");
  EXPECT_EQ(differences(builder.p), FiniteDifferences::Answer::kAgree);
  EXPECT_EQ(differences(builder.p, {{"detached", "identity"}}),
            FiniteDifferences::Answer::kDisagree);
}

}  // namespace
}  // namespace distgrad
