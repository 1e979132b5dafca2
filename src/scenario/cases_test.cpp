#include "scenario/cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scenario/parse.h"

namespace distgrad {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Scenario scenario(const std::string& rest, const std::string& world = "\"world_size\": 2",
                  const std::string& x = "1.0", const std::string& objective = "\"sum\"") {
  return parse_scenario(
      "{" + world + ", \"inputs\": {\"x\": " + x +
          "}, \"steps\": [{\"y\": {\"all_reduce\": \"x\"}}], \"loss\": \"y\", \"objective\": " +
          objective + (rest.empty() ? "" : ", " + rest) + "}",
      "dir/f.json");
}

Overrides with(std::initializer_list<std::pair<const char*, const char*>> fields) {
  Overrides overrides;
  for (const auto& [field, value] : fields) add_override(overrides, field, value);
  return overrides;
}

std::vector<std::string> ids(const Scenario& s, const Overrides& overrides = {}) {
  std::vector<std::string> result;
  for (const Case& c : expand(s, overrides, "2.15.0")) result.push_back(c.id);
  return result;
}

Case only(const Scenario& s, const Overrides& overrides, const char* torch = "2.15.0") {
  const std::vector<Case> cases = expand(s, overrides, torch);
  if (cases.size() != 1) throw std::logic_error("not one case but " + std::to_string(cases.size()));
  return cases[0];
}

TEST(Cases, NamesSayOnlyWhatVaries) {
  EXPECT_THAT(ids(scenario("")), ElementsAre("dir/f.json"));
  EXPECT_THAT(ids(scenario("\"dtype\": [\"float32\"]", "\"world_size\": [2]")),
              ElementsAre("dir/f.json"));
  EXPECT_THAT(ids(scenario("\"subjects\": {\"torch_nn\": \"match\", \"reference\": \"match\"}",
                           "\"world_size\": [3, 1]")),
              ElementsAre("dir/f.json:subject=torch_nn,world_size=3",
                          "dir/f.json:subject=torch_nn,world_size=1",
                          "dir/f.json:subject=reference,world_size=3",
                          "dir/f.json:subject=reference,world_size=1"));
  EXPECT_THAT(
      ids(scenario("\"dtype\": [\"float32\", \"float64\"], \"backend\": [\"gloo\", \"nccl\"]")),
      ElementsAre("dir/f.json:dtype=float32,backend=gloo", "dir/f.json:dtype=float32,backend=nccl",
                  "dir/f.json:dtype=float64,backend=gloo",
                  "dir/f.json:dtype=float64,backend=nccl"));
}

TEST(Cases, NamesSayWhatWasGivenOnTheCommandLineInTheContractsOrder) {
  const Overrides all = with({{"python", "/opt/a,b/bin/python3"},
                              {"objective", "mean"},
                              {"backend", "gloo"},
                              {"dtype", "float32"},
                              {"world_size", "2"},
                              {"subject", "reference"},
                              {"device", "cpu"}});
  EXPECT_THAT(ids(scenario(""), all), ElementsAre("dir/"
                                                  "f.json:subject=reference,world_size=2,dtype="
                                                  "float32,backend=gloo,objective=mean,device=cpu,"
                                                  "python=/opt/a,b/bin/python3"));
  EXPECT_THAT(ids(scenario(""), with({{"objective", "sum,rank:1"}})),
              ElementsAre("dir/f.json:objective=sum", "dir/f.json:objective=rank:1"));
}

TEST(Cases, ANameSelectsTheCaseItNames) {
  const Scenario s = scenario(
      "\"subjects\": {\"torch_nn\": \"match\", \"simclr\": \"match\"}, \"dtype\": [\"float32\", "
      "\"float16\"]",
      "\"world_size\": [2, 3]");
  for (const std::string& id : ids(s)) {
    const CaseSelection selection = parse_case_id(id);
    EXPECT_EQ(selection.path, "dir/f.json");
    EXPECT_THAT(ids(s, selection.fields), ElementsAre(id));
    const Case c = only(s, selection.fields);
    EXPECT_FALSE(c.world_size_overridden);
    EXPECT_FALSE(c.objective_overridden);
    EXPECT_THAT(c.notes, IsEmpty());
  }
}

TEST(Cases, FilterByTextOfTheName) {
  Overrides overrides;
  overrides.filter = "world_size=3";
  EXPECT_THAT(ids(scenario("", "\"world_size\": [2, 3, 31]"), overrides),
              ElementsAre("dir/f.json:world_size=3", "dir/f.json:world_size=31"));
}

TEST(Cases, SubjectsOfTheCommandLineReplaceTheFilesAndKeepItsExpectations) {
  const Scenario s = scenario(
      "\"subjects\": {\"in_place\": {\"verdict\": \"mismatch\"}, \"torch_nn\": \"match\"}");
  const std::vector<Case> cases = expand(s, with({{"subject", "simclr,in_place"}}), "2.15.0");
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases[0].subject, "simclr");
  EXPECT_EQ(cases[0].expected.verdict, Verdict::kMatch);
  EXPECT_EQ(cases[1].expected.verdict, Verdict::kMismatch);
}

TEST(Cases, TheFirstExpectationThatAppliesCounts) {
  const Scenario s = scenario(
      "\"dtype\": [\"float64\", \"float32\"], \"subjects\": {\"torch_nn\": [{\"verdict\": "
      "\"skipped\", \"when\": {\"world_size\": 1}},"
      "{\"verdict\": \"error\", \"when\": {\"torch\": \"<2.13\", \"dtype\": \"float32\"}}, "
      "{\"verdict\": \"mismatch\", \"when\": "
      "{\"torch\": \"<2.13\"}}, {\"verdict\": \"disputed\", \"when\": {\"backend\": \"nccl\"}}]}",
      "\"world_size\": [1, 2]");
  const auto verdict = [&](const char* size, const char* dtype, const char* torch,
                           const char* backend = "gloo") {
    return only(s, with({{"world_size", size}, {"dtype", dtype}, {"backend", backend}}), torch)
        .expected.verdict;
  };
  EXPECT_EQ(verdict("1", "float32", "2.11.0"), Verdict::kSkipped);
  EXPECT_EQ(verdict("2", "float32", "2.11.0+cpu"), Verdict::kError);
  EXPECT_EQ(verdict("2", "float64", "2.11.0"), Verdict::kMismatch);
  EXPECT_EQ(verdict("2", "float64", "2.13.0"), Verdict::kMatch);
  EXPECT_EQ(verdict("2", "float64", "2.13.0", "nccl"), Verdict::kDisputed);
  EXPECT_EQ(verdict("2", "float64", ""), Verdict::kMatch);
}

TEST(Cases, AnotherObjectiveLeavesOutTruthAndExpectations) {
  const Scenario s = scenario(
      "\"truth\": {\"x\": \"2.0\"}, \"subjects\": {\"in_place\": {\"verdict\": \"mismatch\"}}");
  const Case other = only(s, with({{"objective", "mean"}}));
  EXPECT_TRUE(other.objective_overridden);
  EXPECT_EQ(other.expected.verdict, Verdict::kMatch);
  EXPECT_THAT(program_for(other).truth, IsEmpty());
  EXPECT_THAT(other.notes,
              ElementsAre(HasSubstr("the file's truth and expectations do not apply")));
  const Case same = only(s, with({{"objective", "sum"}}));
  EXPECT_FALSE(same.objective_overridden);
  EXPECT_EQ(same.expected.verdict, Verdict::kMismatch);
  EXPECT_EQ(program_for(same).truth.size(), 1u);
}

TEST(Cases, AnotherWorldSizeLeavesOutFiguresPinnedForTheFiles) {
  const std::string subjects =
      "\"subjects\": {\"in_place\": [{\"verdict\": \"match\", \"gradients\": {\"x\": [1, 1, 1]}, "
      "\"when\": {\"world_size\": 3}},"
      "{\"verdict\": \"mismatch\", \"gradients\": {\"x\": [1, 1]}}]}";
  const Scenario figures = scenario("\"truth\": {\"x\": [2, 2]}, " + subjects);
  const Case four = only(figures, with({{"world_size", "4"}}));
  EXPECT_TRUE(four.world_size_overridden);
  EXPECT_EQ(four.expected.verdict, Verdict::kMismatch);
  EXPECT_THAT(four.expected.gradients, IsEmpty());
  EXPECT_THAT(program_for(four).truth, IsEmpty());
  EXPECT_THAT(four.notes, ElementsAre(HasSubstr("figures pinned for another are not checked")));
  EXPECT_EQ(four.skip_reason, "");
  // Pinned for just this size.
  EXPECT_EQ(only(figures, with({{"world_size", "3"}})).expected.gradients.size(), 1u);
  // A closed form serves every size.
  const Scenario with_closed_form = scenario("\"truth\": {\"x\": \"world_size * x\"}");
  const Case closed = only(with_closed_form, with({{"world_size", "4"}}));
  EXPECT_EQ(program_for(closed).truth.size(), 1u);
  EXPECT_THAT(closed.notes, IsEmpty());
}

TEST(Cases, ThatAnOverrideMakesImpossibleAreSkippedWithTheReason) {
  const auto why = [](const Scenario& s, const char* field, const char* value) {
    return only(s, with({{field, value}})).skip_reason;
  };
  EXPECT_EQ(why(scenario("", "\"world_size\": 2", "{\"by_rank\": [1, 2]}"), "world_size", "3"),
            "/inputs/x/by_rank: has 2 values, the world 3 ranks");
  EXPECT_EQ(why(scenario("\"groups\": {\"g\": [[1, 0]]}"), "world_size", "3"),
            "/groups/g: rank 2 of 3 is in no list; every rank is in exactly one");
  EXPECT_EQ(why(scenario("\"groups\": {\"g\": {\"size\": 2}}"), "world_size", "3"),
            "/groups/g/size: groups of 2 do not divide a world of 3 ranks");
  EXPECT_EQ(why(scenario("", "\"mesh\": {\"dp\": 2}"), "world_size", "3"),
            "/mesh: is a world of 2 ranks, not of 3");
  EXPECT_EQ(why(scenario("", "\"world_size\": 2", "1", "{\"rank\": 1}"), "world_size", "1"),
            "there is no rank 1 in a world of 1 rank");
  EXPECT_EQ(why(scenario(""), "objective", "rank:2"), "there is no rank 2 in a world of 2 ranks");
  EXPECT_EQ(why(scenario(""), "objective", "dp=mean"),
            "the objective dp=mean is by mesh axis, but the scenario has no mesh");
  EXPECT_EQ(why(scenario("", "\"mesh\": {\"dp\": 2, \"tp\": 1}"), "objective", "dp=mean"),
            "the objective dp=mean does not name the mesh's axes (dp, tp)");
  EXPECT_EQ(why(scenario("", "\"mesh\": {\"dp\": 2, \"tp\": 1}"), "objective", "dp=mean+dp=sum"),
            "the objective dp=mean+dp=sum does not name the mesh's axes (dp, tp)");
  EXPECT_EQ(why(scenario(""), "subject", "python:m:f"), "") << "typed by the user";
  EXPECT_EQ(why(scenario("\"backend\": \"nccl\""), "device", "cpu"),
            "nccl does not take tensors on the device cpu");
  EXPECT_EQ(why(scenario(""), "world_size", "3"), "");
}

TEST(Cases, WhatNeedsAGpuIsAskedForByTheCase) {
  Overrides overrides =
      with({{"backend", "gloo,nccl"}, {"device", "cpu,cuda"}, {"world_size", "3"}});
  std::vector<std::string> asked;
  overrides.why_unavailable = [&](const Case& which) {
    asked.push_back(which.backend + " on " + which.device + ", " +
                    std::to_string(which.world_size));
    return which.backend == "nccl" ? "no GPU" : "";
  };
  const Scenario file = scenario("");
  const std::vector<Case> cases = expand(file, overrides, "2.15.0");
  ASSERT_EQ(cases.size(), 3u) << "nccl on the CPU is no case where cuda is asked for as well";
  EXPECT_EQ(cases[0].id, "dir/f.json:world_size=3,backend=gloo,device=cpu");
  EXPECT_EQ(cases[1].id, "dir/f.json:world_size=3,backend=gloo,device=cuda");
  EXPECT_EQ(cases[2].id, "dir/f.json:world_size=3,backend=nccl,device=cuda");
  EXPECT_EQ(cases[2].skip_reason, "no GPU");
  EXPECT_THAT(asked, ElementsAre("gloo on cuda, 3", "nccl on cuda, 3"));
}

TEST(Cases, NcclImpliesCuda) {
  const Scenario file = scenario("\"backend\": \"nccl\"");
  const Case c = only(file, Overrides());
  EXPECT_EQ(c.device, "cuda");
  EXPECT_EQ(c.id, "dir/f.json");
}

TEST(Cases, CodeThatAFileNamesRunsOnlyWhereItIsAllowed) {
  const Scenario s = scenario("\"subjects\": {\"all_reduce=python:f.py:g\": \"match\"}");
  EXPECT_EQ(only(s, Overrides()).skip_reason,
            "code that is named in a scenario file runs only with --allow-code");
  Overrides allowed;
  allowed.allow_code = true;
  EXPECT_EQ(only(s, allowed).skip_reason, "");
}

TEST(Cases, OnlySubjectsInPythonMultiplyByInterpreter) {
  const Overrides two = with({{"python", "a/python3"},
                              {"python", "b/python3"},
                              {"subject", "reference"},
                              {"subject", "python:m:f"}});
  EXPECT_THAT(
      ids(scenario(""), two),
      ElementsAre("dir/f.json:subject=reference", "dir/f.json:subject=python:m:f,python=a/python3",
                  "dir/f.json:subject=python:m:f,python=b/python3"));
}

TEST(Cases, AnObjectiveByAxisIsBroughtIntoMeshOrder) {
  const Scenario s =
      scenario("", "\"mesh\": {\"dp\": 2, \"tp\": 1}", "1", "{\"tp\": \"sum\", \"dp\": \"mean\"}");
  const Case c = only(s, with({{"objective", "tp=sum+dp=mean"}}));
  EXPECT_EQ(c.id, "dir/f.json:objective=dp=mean+tp=sum");
  EXPECT_FALSE(c.objective_overridden);
  EXPECT_EQ(c.skip_reason, "");
}

TEST(ProgramFor, ResolvesGroupsAsTorchsDeviceMesh) {
  const Scenario s = scenario("\"groups\": {\"s\": {\"stride\": 4}, \"b\": {\"size\": 3}}",
                              "\"mesh\": {\"pp\": 2, \"tp\": 3}");
  const Program program = program_for(s, 6, DType::kFloat32);
  ASSERT_EQ(program.groups.size(), 4u);
  EXPECT_THAT(program.groups[0].partition,
              ElementsAre(ElementsAre(0, 3), ElementsAre(1, 4), ElementsAre(2, 5)));
  EXPECT_THAT(program.groups[1].partition, ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
  EXPECT_TRUE(program.groups[1].is_mesh_axis);
  EXPECT_THAT(program.groups[2].partition,
              ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2), ElementsAre(3)));
  EXPECT_THAT(program.groups[3].partition, ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
  EXPECT_EQ(program.dtype, DType::kFloat32);
  EXPECT_EQ(program.steps.size(), 1u);
}

TEST(ProgramFor, AStrideBeyondTheWorldLeavesEachRankAlone) {
  const Scenario s = scenario("\"groups\": {\"s\": {\"stride\": 4}}");
  EXPECT_THAT(program_for(s, 2, DType::kFloat64).groups[0].partition,
              ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(ProgramFor, AThreeAxisMeshVariesTheLastFastest) {
  const Scenario s = scenario("", "\"mesh\": {\"a\": 2, \"b\": 2, \"c\": 2}");
  const Program program = program_for(s, 8, DType::kFloat64);
  EXPECT_THAT(program.groups[0].partition, ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5),
                                                       ElementsAre(2, 6), ElementsAre(3, 7)));
  EXPECT_THAT(program.groups[1].partition, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3),
                                                       ElementsAre(4, 6), ElementsAre(5, 7)));
  EXPECT_THAT(program.groups[2].partition, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3),
                                                       ElementsAre(4, 5), ElementsAre(6, 7)));
}

}  // namespace
}  // namespace distgrad
