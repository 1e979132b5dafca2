#include "fuzz/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "model/libraries.h"
#include "scenario/cases.h"
#include "scenario/parse.h"

namespace distgrad::fuzz {
namespace {

using testing::IsSupersetOf;
using testing::SizeIs;

constexpr int kMany = 2000;

Scenario parsed(const Choices& choices, std::uint64_t seed, std::uint64_t index) {
  return parse_scenario(draw_program(choices, seed, index).dump(), "program");
}

TEST(Generator, TheSameSeedGivesTheSameBytesAndAnotherSeedOthers) {
  const Choices choices = default_choices();
  std::set<std::string> texts;
  for (int i = 0; i < 200; ++i) {
    const std::string text = draw_program(choices, 7, i).dump();
    EXPECT_EQ(text, draw_program(choices, 7, i).dump());
    EXPECT_NE(text, draw_program(choices, 8, i).dump());
    texts.insert(text);
  }
  EXPECT_THAT(texts, SizeIs(200));
}

// Pinned, so that a seed in somebody's report still gives the program that it gave.
TEST(Generator, AProgramIsThatOfEveryMachine) {
  EXPECT_EQ(draw_program(default_choices(), 1, 2).dump(), R"(PIN)");
}

TEST(Generator, EveryProgramIsAValidScenario) {
  const Choices choices = default_choices();
  for (int i = 0; i < kMany; ++i) EXPECT_NO_THROW(parsed(choices, 11, i)) << draw_program(choices, 11, i).dump();
}

struct Seen {
  std::set<std::string> kinds, options, groups, layouts, dtypes, objectives, inputs, others;

  void add_call(const CollectiveCall& call) {
    const CollectiveTraits& t = traits(call.kind);
    kinds.insert(std::string(t.name) + (t.takes_op ? " " + std::string(name_of(call.op)) : ""));
    const auto note = [&](bool given, const char* what) {
      if (given) options.insert(std::string(t.name) + " " + what);
    };
    note(!call.group.empty(), "group");
    note(call.root != 0, "root");
    note(call.dim.has_value(), "dim");
    note(call.dim.value_or(0) < 0, "negative dim");
    note(!call.splits.empty(), "splits");
  }

  void add_groups(const Scenario& scenario) {
    for (const MeshAxis& axis : scenario.mesh) groups.insert(axis.size == 1 ? "axis of 1" : "axis");
    if (scenario.mesh.size() > 2) groups.insert("three axes");
    for (const GroupSpec& group : scenario.groups) {
      if (group.size > 0) groups.insert("size");
      if (group.stride > 0) groups.insert("stride");
      if (group.listed.empty()) continue;
      groups.insert("listed");
      for (const auto& list : group.listed) {
        if (!std::is_sorted(list.begin(), list.end())) groups.insert("out of order");
        if (list.size() != group.listed[0].size()) groups.insert("unequal");
      }
    }
  }

  void add_input(const Input& input) {
    for (const AxisLayout& l : input.layout) {
      constexpr std::array kNames = {"local", "replicate", "invariant", "shard"};
      layouts.insert(std::string(kNames[static_cast<std::size_t>(l.layout.kind)]) + (l.axis.empty() ? "" : " by axis"));
    }
    for (const auto& [axis, how] : input.sync)
      layouts.insert(std::string(how == Input::Sync::kMean ? "mean" : "sum") + (axis.empty() ? "" : " by axis"));
    constexpr std::array kForms = {"value", "by_rank", "expr", "random"};
    inputs.insert(kForms[input.value.index()]);
    if (!input.requires_grad) inputs.insert("no grad");
    const auto* random = std::get_if<RandomSpec>(&input.value);
    if (!random) return;
    inputs.insert(random->kind == RandomSpec::Kind::kIntegers ? "integers"
                  : random->kind == RandomSpec::Kind::kNormal ? "normal" : "uniform");
    if (random->shape.empty()) inputs.insert("scalar");
    for (const auto& extent : random->shape) {
      const auto* number = std::get_if<std::int64_t>(&extent);
      inputs.insert(!number ? "by rank" : *number == 0 ? "empty" : *number == 1 ? "one" : *number == 7 ? "prime" : "other");
    }
  }

  void add(const Scenario& scenario) {
    add_groups(scenario);
    for (const Input& input : scenario.inputs) add_input(input);
    std::size_t collectives = 0;
    for (const Step& step : scenario.steps)
      if (const CollectiveCall* call = step.collective()) {
        add_call(*call);
        ++collectives;
      }
    if (collectives > 3) others.insert("many collectives");
    if (collectives == 0) others.insert("no collective");
    dtypes.insert(std::string(traits(scenario.dtypes[0]).name));
    const std::string objective = spelled(scenario.objective);
    objectives.insert(objective.substr(0, objective.find(':')));
    if (scenario.loss.text.find(" if rank ") != std::string::npos) others.insert("losses of their own");
  }
};

TEST(Generator, TwoThousandProgramsHaveEverything) {
  const Choices choices = default_choices();
  Seen seen;
  for (int i = 0; i < kMany; ++i) seen.add(parsed(choices, 3, i));
  std::set<std::string> kinds, options;
  for (const CollectiveTraits& t : kCollectives) {
    const std::string name(t.name);
    options.insert(name + " group");
    if (t.takes_root) options.insert(name + " root");
    if (t.takes_dim) options.insert({name + " dim", name + " negative dim"});
    if (t.takes_splits) options.insert(name + " splits");
    if (!t.takes_op) kinds.insert(name);
    for (const std::string_view op : kReduceOpNames)
      if (t.takes_op) kinds.insert(name + " " + std::string(op));
  }
  EXPECT_THAT(seen.kinds, IsSupersetOf(kinds));
  EXPECT_THAT(seen.options, IsSupersetOf(options));
  EXPECT_THAT(seen.groups, IsSupersetOf({"axis", "axis of 1", "three axes", "size", "stride", "listed", "out of order", "unequal"}));
  EXPECT_THAT(seen.layouts, IsSupersetOf({"local", "replicate", "shard", "replicate by axis", "shard by axis", "sum", "mean",
                                          "sum by axis", "mean by axis"}));
  EXPECT_THAT(seen.dtypes, IsSupersetOf({"float64", "float32", "bfloat16", "float16"}));
  EXPECT_THAT(seen.objectives, IsSupersetOf({"sum", "mean", "replicated", "rank", "dp=mean+tp=replicated", "dp=replicated+tp=sum"}));
  EXPECT_THAT(seen.inputs, IsSupersetOf({"value", "by_rank", "expr", "random", "no grad", "integers", "normal", "uniform",
                                         "scalar", "by rank", "empty", "one", "prime"}));
  EXPECT_THAT(seen.others, IsSupersetOf({"many collectives", "no collective", "losses of their own"}));
}

TEST(Generator, OnlyWhatIsChosenIsDrawn) {
  Choices choices = default_choices();
  choices.world_sizes = {3};
  choices.dtypes = {DType::kFloat32};
  choices.offers = offers_of("simclr");
  Seen seen;
  for (int i = 0; i < 300; ++i) {
    const Scenario scenario = parsed(choices, 5, i);
    EXPECT_THAT(scenario.world_sizes, testing::ElementsAre(3));
    seen.add(scenario);
  }
  EXPECT_THAT(seen.kinds, testing::ElementsAre("all_gather"));
  EXPECT_THAT(seen.dtypes, testing::ElementsAre("float32"));
  choices.offers = offers_of("jax_pmap");
  seen = {};
  for (int i = 0; i < 300; ++i) seen.add(parsed(choices, 5, i));
  EXPECT_THAT(seen.kinds, testing::ElementsAre("all_reduce avg", "all_reduce sum")) << "max and min raise";
}

TEST(Generator, InvariantInputsAreForThoseThatAreMeantToSatisfyThem) {
  Choices choices = default_choices();
  choices.offers = offers_of("megatron");
  choices.invariant = true;
  Seen seen;
  for (int i = 0; i < 300; ++i) seen.add(parsed(choices, 5, i));
  EXPECT_TRUE(seen.layouts.contains("invariant"));
  EXPECT_TRUE(seen.kinds.contains("copy"));
}

}  // namespace
}  // namespace distgrad::fuzz
