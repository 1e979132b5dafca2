// Mutants in whole programs on real ranks: several at once, and those that another call or value
// shows.
#include "rank/real_ranks_test.h"

namespace distgrad {
namespace {

struct Whole {
  Program program;

  explicit Whole(int world_size) { program.world_size = world_size; }
  Whole& input(const std::string& name, const Shape& shape) {
    std::vector<Array> values;
    for (int r = 0; r < program.world_size; ++r) {
      std::vector<double> own;
      for (std::int64_t i = 0; i < element_count(shape); ++i)
        own.push_back(static_cast<double>((i * 3 + r * 5 + 2) % 11) - 4);
      values.emplace_back(shape, std::move(own));
    }
    Input in;
    in.name = name;
    in.value = std::move(values);
    in.layout = {{"", Layout{}}};
    program.inputs.push_back(std::move(in));
    return *this;
  }
  Whole& step(const std::string& name, const std::string& text) {
    program.steps.push_back({name, "", Expression{text, ""}});
    return *this;
  }
  Whole& call(const std::string& name, CollectiveKind kind, const std::string& operand,
              const std::string& group = {}) {
    CollectiveCall c;
    c.kind = kind;
    c.operand.text = operand;
    c.group = group;
    program.steps.push_back({name, "", c});
    return *this;
  }
  Whole& loss(const std::string& text) {
    program.loss.text = text;
    return *this;
  }

  RunRequest run(const std::string& subject) const {
    RunRequest request{program, subject, "", {}};
    request.observe = true;
    return request;
  }
  Simulation replayed(const std::vector<RuleChoice>& rules) const {
    SimulateRequest request;
    request.program = program;
    request.weights = {std::vector<double>(static_cast<std::size_t>(program.world_size), 1.0)};
    request.rules = rules;
    request.leaves_by_rank = true;
    return simulate(request);
  }
};

bool gives(const DistributedRun& run, const Simulation& s) {
  for (std::size_t i = 0; i < s.gradients[0].size(); ++i)
    for (std::size_t r = 0; r < run.ranks.size(); ++r) {
      const Array &seen = run.ranks[r].gradients[i].value(),
                  &is = s.gradients[0][i].parts[r].value();
      const Array& bound = s.bounds[i].parts[r].value();
      for (std::int64_t e = 0; e < is.size(); ++e)
        if (std::abs(seen[e] - is[e]) > bound[e]) return false;
    }
  return true;
}

const ObservedCall& observed(const RankResult& rank, const std::string& step) {
  return *std::ranges::find(rank.observed, step, &ObservedCall::step);
}

TEST(MutatedPrograms, SeveralAtOnceInAMesh) {
  Whole w(6);
  w.program.groups = {{"dp", {{0, 3}, {1, 4}, {2, 5}}, true},
                      {"tp", {{0, 1, 2}, {3, 4, 5}}, true},
                      {"odd", {{5, 0, 3}, {1}, {4, 2}}, false}};
  w.input("x", {2, 3}).step("a", "x * (rank + 1)");
  w.call("y", CollectiveKind::kAllReduce, "a", "dp")
      .call("z", CollectiveKind::kAllGather, "y * x", "tp");
  w.call("u", CollectiveKind::kAllReduce, "x + rank", "odd")
      .loss("(z * z).sum() * (rank + 1) + (u * y * rank).sum()");
  testing::RealRanks ranks;
  const std::vector<std::vector<RuleChoice>> all = {
      {{"y", "identity"}, {"z", "next_slice"}},
      {{"y", "reduced_twice"}, {"z", "own_slice"}, {"u", "others_part"}},
      {{"z", "divided"}, {"u", "none"}},
  };
  for (const auto& rules : all) {
    std::string subject = "mutant:";
    for (const RuleChoice& rule : rules)
      subject += (subject.back() == ':' ? "" : "+") + rule.step + "=" + rule.rule;
    SCOPED_TRACE(subject);
    const DistributedRun run = ranks.run(w.run(subject));
    ASSERT_FALSE(run.error) << run.error->message;
    EXPECT_TRUE(gives(run, w.replayed(rules)));
    EXPECT_FALSE(gives(run, w.replayed({})));
    for (std::size_t i = 0; i < rules.size(); ++i) {
      std::vector<RuleChoice> fewer = rules;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_FALSE(gives(run, w.replayed(fewer))) << "without " << rules[i].step;
    }
  }
  EXPECT_TRUE(gives(ranks.run(w.run("mutant:other=identity")), w.replayed({})));
}

TEST(MutatedPrograms, WriteOverACotangentThatOthersRead) {
  Whole w(3);
  w.input("x", {2})
      .input("w", {2})
      .step("v", "w * 2")
      .call("y", CollectiveKind::kAllReduce, "x * 1");
  w.step("s", "y + v").loss("(s * s).sum() * (rank + 1)");
  testing::RealRanks ranks;
  const DistributedRun run = ranks.run(w.run("mutant:y=overwritten")),
                       right = ranks.run(w.run("reference"));
  ASSERT_FALSE(run.error) << run.error->message;
  EXPECT_TRUE(gives(run, w.replayed({{"y", "overwritten"}})));
  EXPECT_FALSE(gives(run, w.replayed({})));
  EXPECT_TRUE(gives(right, w.replayed({})));
  for (std::size_t r = 0; r < 3; ++r) {
    const ObservedCall& seen = observed(run.ranks[r], "y");
    const ObservedCall& as_it_was = observed(right.ranks[r], "y");
    EXPECT_TRUE(
        testing::close(tensor_of(seen.cotangent.value()), tensor_of(as_it_was.cotangent.value())));
    EXPECT_TRUE(testing::close(tensor_of(seen.given.value()), tensor_of(as_it_was.given.value())));
    EXPECT_TRUE(
        testing::close(tensor_of(seen.cotangent_after.value()), tensor_of(seen.given.value())));
    EXPECT_FALSE(as_it_was.cotangent_after);
  }
}

TEST(MutatedPrograms, GetWhatAnotherCallGives) {
  Whole w(3);
  w.input("x", {2, 3}).step("a", "x.reshape(3, 2) * 5");
  w.call("z", CollectiveKind::kAllReduce, "x * (rank + 2)")
      .call("y", CollectiveKind::kAllReduce, "a");
  w.loss("(z * z).sum() * (rank + 1) + (y * y * y).sum()");
  testing::RealRanks ranks;
  const DistributedRun run = ranks.run(w.run("mutant:y=stale:z")),
                       right = ranks.run(w.run("reference"));
  ASSERT_FALSE(run.error) << run.error->message;
  for (std::size_t r = 0; r < 3; ++r) {
    SCOPED_TRACE(r);
    const at::Tensor of_z = tensor_of(observed(run.ranks[r], "z").given.value());
    const at::Tensor of_y = tensor_of(observed(run.ranks[r], "y").given.value());
    EXPECT_TRUE(testing::close(of_z, tensor_of(observed(right.ranks[r], "z").given.value())))
        << "the lender is right";
    EXPECT_TRUE(testing::close(of_y, of_z.reshape({3, 2})));
    EXPECT_FALSE(testing::close(of_y, tensor_of(observed(right.ranks[r], "y").given.value())));
    const at::Tensor x = of_z * static_cast<double>(r + 2) + of_z * 5;
    EXPECT_TRUE(testing::close(tensor_of(run.ranks[r].gradients[0].value()), x));
  }
}

TEST(MutatedPrograms, SayWhatCannotBe) {
  Whole w(3);
  w.input("x", {2})
      .call("z", CollectiveKind::kAllReduce, "x")
      .call("y", CollectiveKind::kAllReduce, "z * x")
      .loss("y.sum()");
  const auto error = [&](const std::string& subject) {
    testing::RealRanks ranks;
    const auto run = ranks.run(w.run(subject));
    return run.error ? run.error->message : "none";
  };
  EXPECT_NE(error("mutant:y=stale:z").find("comes after"), std::string::npos);
  EXPECT_EQ(error("mutant:y=nonsense"), "no rule for this call: nonsense");
  EXPECT_EQ(error("mutant:y=own_slice"), "no rule for this call: own_slice")
      << "which is all_gather's";
  EXPECT_EQ(error("mutant:y=group:tp"), "no group tp");
  EXPECT_EQ(error("mutant:y=order:up"), "no mutation: y=order:up");
  EXPECT_EQ(error("mutant:other=nonsense"), "none")
      << "a driven program has one step of those that are named";
}

}  // namespace
}  // namespace distgrad
