#include "scenario/case_id.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "scenario/find.h"
#include "scenario/objective_text.h"
#include "scenario/torch_version.h"

namespace distgrad {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(CaseId, SplitsPathAndFields) {
  const CaseSelection s = parse_case_id(
      "a/b.json:subject=torch_nn,world_size=3,dtype=float16,objective=dp=mean+tp=replicated");
  EXPECT_EQ(s.path, "a/b.json");
  EXPECT_THAT(s.fields.subjects, ElementsAre("torch_nn"));
  EXPECT_THAT(s.fields.world_sizes, ElementsAre(3));
  EXPECT_THAT(s.fields.dtypes, ElementsAre(DType::kFloat16));
  ASSERT_EQ(s.fields.objectives.size(), 1u);
  EXPECT_EQ(spelled(s.fields.objectives[0]), "dp=mean+tp=replicated");
}

TEST(CaseId, APathMayHaveColonsAndEqualSigns) {
  EXPECT_EQ(parse_case_id("run:1/lr=0.1,a.json").path, "run:1/lr=0.1,a.json");
  EXPECT_EQ(parse_case_id("C:x/world_size=3/f.json").path, "C:x/world_size=3/f.json");
  const CaseSelection s = parse_case_id("run:1/lr=0.1.json:world_size=3");
  EXPECT_EQ(s.path, "run:1/lr=0.1.json");
  EXPECT_THAT(s.fields.world_sizes, ElementsAre(3));
}

TEST(CaseId, ASubjectMayHaveColonsCommasAndEqualSigns) {
  const CaseSelection s = parse_case_id("f.json:subject=python:lib,v=2/x.py:gather,world_size=2");
  EXPECT_EQ(s.path, "f.json");
  EXPECT_THAT(s.fields.subjects, ElementsAre("python:lib,v=2/x.py:gather"));
  EXPECT_THAT(s.fields.world_sizes, ElementsAre(2));
  EXPECT_THAT(parse_case_id("f.json:subject=all_gather=simclr").fields.subjects,
              ElementsAre("all_gather=simclr"));
  EXPECT_THAT(parse_case_id("f.json:python=/a,b/python3").fields.pythons,
              ElementsAre("/a,b/python3"));
}

TEST(CaseId, FieldsTakeListsAsTheOptionsDo) {
  EXPECT_THAT(parse_case_id("f.json:world_size=2,3,2,dtype=float32").fields.world_sizes,
              ElementsAre(2, 3));
  EXPECT_THAT(parse_case_id("f.json:subject=simclr,simcse").fields.subjects,
              ElementsAre("simclr", "simcse"));
}

TEST(CaseId, ACommaThatASubjectStandsBehindSeparatesSubjects) {
  const auto subjects = [](const std::string& text) {
    return parse_case_id("f.json:subject=" + text).fields.subjects;
  };
  EXPECT_THAT(subjects("reference,python:f.py:g,world_size=2"),
              ElementsAre("reference", "python:f.py:g"));
  EXPECT_THAT(subjects("python:f.py:g,python:a.b:c@async,library:x.so:n::o,torch_nn"),
              ElementsAre("python:f.py:g", "python:a.b:c@async", "library:x.so:n::o", "torch_nn"));
  EXPECT_THAT(subjects("all_reduce=python:f.py:g,all_gather=simclr"),
              ElementsAre("all_reduce=python:f.py:g", "all_gather=simclr"));
  EXPECT_THAT(subjects("python:a,reference/f.py:g"), ElementsAre("python:a,reference/f.py:g"));
  EXPECT_EQ(error_of([&] { subjects("python:f.py:g,torchnn"); }),
            "unknown subject \"torchnn\"; did you mean \"torch_nn\"?");
}

TEST(CaseId, WhatStandsInACallSeparatesNothing) {
  const std::string call = "python:m:f(x,reference,python=(1, 'a,dtype=b'),world_size=2)[0]";
  const CaseSelection s =
      parse_case_id("f.json:subject=all_gather=" + call + "@async,simclr,world_size=3");
  EXPECT_EQ(s.path, "f.json");
  EXPECT_THAT(s.fields.subjects, ElementsAre("all_gather=" + call + "@async", "simclr"));
  EXPECT_THAT(s.fields.world_sizes, ElementsAre(3));
  EXPECT_TRUE(s.fields.dtypes.empty() && s.fields.pythons.empty());
}

TEST(CaseId, TellsHowCodeIsNamed) {
  const auto error = [](const std::string& subject) {
    return error_of([&] { parse_case_id("f.json:subject=" + subject); });
  };
  // Messages cut long names, so the name must not depend on where the sources lie.
  const fs::path before = fs::current_path();
  fs::current_path(DISTGRAD_SOURCE_DIR);
  const std::string file = "docs/examples/losses.py";
  EXPECT_EQ(error(file), "unknown subject \"" + file + "\"; did you mean \"python:" + file + "\"?");
  EXPECT_EQ(error("all_gather=" + file + ":Gather.apply"),
            "unknown subject \"" + file + ":Gather.apply\"; did you mean \"python:" + file +
                ":Gather.apply\"?");
  const std::string longer = "./././././././././././././././././././" + file + ":Gather.apply";
  EXPECT_THAT(error(longer), HasSubstr("did you mean \"python:" + longer + "\"?"));
  EXPECT_EQ(error("no_such.py:Gather.apply"),
            "there is no file \"no_such.py\" (code is python:FILE.py:NAME or python:MODULE)");
  EXPECT_EQ(error("my_package.comm:gather"),
            "unknown subject \"my_package.comm:gather\"; did you mean "
            "\"python:my_package.comm:gather\"?");
  EXPECT_EQ(error("torch"),
            "unknown subject \"torch\"; did you mean \"python:torch.distributed.nn.functional\"?");
  EXPECT_EQ(error("ops.so:mine::sum"),
            "there is no file \"ops.so\" (code is library:FILE.so:NAMESPACE::OP)");
  EXPECT_THAT(error("mydist"), testing::HasSubstr("code is python:FILE.py"));
  fs::current_path(before);
}

TEST(CaseId, TellsWrongValues) {
  const auto error = [](const char* text) { return error_of([&] { parse_case_id(text); }); };
  EXPECT_EQ(error("f.json:world_size=two"),
            "world_size must be an integer from 1 to 4096, not \"two\"");
  EXPECT_EQ(error("f.json:world_size=0"),
            "world_size must be an integer from 1 to 4096, not \"0\"");
  EXPECT_EQ(error("f.json:world_size="), "world_size has no value");
  EXPECT_EQ(error("f.json:dtype=float23"), "unknown dtype \"float23\"; did you mean \"float32\"?");
  EXPECT_EQ(error("f.json:subject=torchnn"),
            "unknown subject \"torchnn\"; did you mean \"torch_nn\"?");
  EXPECT_EQ(error("f.json:backend=mpi"), "unknown backend \"mpi\"; it is \"gloo\" or \"nccl\"");
  EXPECT_EQ(error("f.json:objective=summ"), "unknown objective \"summ\"; did you mean \"sum\"?");
}

TEST(CaseId, WhatTheNameSaysWinsOverTheOptions) {
  Overrides options;
  add_override(options, "world_size", "4");
  add_override(options, "dtype", "float32");
  options.filter = "x";
  const Overrides both = narrowed(options, parse_case_id("f.json:world_size=3").fields);
  EXPECT_THAT(both.world_sizes, ElementsAre(3));
  EXPECT_THAT(both.dtypes, ElementsAre(DType::kFloat32));
  EXPECT_EQ(both.filter, "x");
}

TEST(ObjectiveText, ReadsWhatIsSpelled) {
  for (const char* text :
       {"sum", "mean", "replicated", "rank:0", "rank:17", "dp=sum", "dp=mean+tp=replicated+pp=sum"})
    EXPECT_EQ(spelled(parse_objective_text(text)), text);
}

TEST(ObjectiveText, RefusesTheRest) {
  for (const char* text : {"", "rank", "rank:", "rank:-1", "rank:1x", "rank:99999999999", "=sum",
                           "dp=", "dp=sum+", "dp=sum+tp", "+", "dp=sum++tp=mean", "Sum "})
    EXPECT_NE(error_of([&] { parse_objective_text(text); }), "") << text;
  EXPECT_THAT(error_of([] { parse_objective_text("dp=meen"); }),
              HasSubstr("for axis \"dp\"; did you mean \"mean\"?"));
  EXPECT_THAT(error_of([] { parse_objective_text("rank"); }), HasSubstr("rank:K"));
}

TEST(TorchVersion, ComparesAsManyPartsAsTheConditionHas) {
  EXPECT_TRUE(torch_condition_holds(">=2.13", "2.13.0"));
  EXPECT_TRUE(torch_condition_holds(">=2.13", "2.15.0+cu130"));
  EXPECT_FALSE(torch_condition_holds(">=2.13", "2.9.1"));
  EXPECT_TRUE(torch_condition_holds("<2.13", "2.12.9"));
  EXPECT_FALSE(torch_condition_holds("<2.13", "2.13.0a0+git1234"));
  EXPECT_TRUE(torch_condition_holds("==2.13", "2.13.1"));
  EXPECT_FALSE(torch_condition_holds("==2.13.0", "2.13.1"));
  EXPECT_FALSE(torch_condition_holds(">2.13", "2.13.1"));
  EXPECT_TRUE(torch_condition_holds("<=2.13", "2.13.1"));
  EXPECT_TRUE(torch_condition_holds("!=2.13", "2.14.0.dev20260101"));
  EXPECT_TRUE(torch_condition_holds(">= 2.11, <2.13", "2.12.0"));
  EXPECT_FALSE(torch_condition_holds(">=2.11,<2.13", "2.13.0"));
  EXPECT_TRUE(torch_condition_holds(">=3", "3.0.dev1"));
  EXPECT_FALSE(torch_condition_holds(">=2.13", ""));
}

TEST(TorchVersion, RefusesOtherForms) {
  for (const char* text :
       {"", "2.13", "=2.13", ">=", ">=2.", ">=2.x", ">=2.13a0", ">=2.13,", "~=2.13", ">=-2"})
    EXPECT_NE(problem_with_torch_condition(text), "") << text;
  for (const char* text : {">=2.13", "<2", "==2.15.0", ">= 2.11 , < 2.13"})
    EXPECT_EQ(problem_with_torch_condition(text), "") << text;
}

class Find : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "distgrad-find-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    for (const char* file : {"b.json", "a/z.json", "a/y.json", "a/deep/x.json", "a/notes.txt",
                             "a/distgrad.schema.json", "c:world_size=3.json"}) {
      fs::create_directories((root_ / file).parent_path());
      std::ofstream(root_ / file) << "{}";
    }
  }
  void TearDown() override { fs::remove_all(root_); }

  std::vector<std::string> found(const std::vector<std::string>& names) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back((root_ / name).string());
    std::vector<std::string> result;
    for (const CaseSelection& s : find_scenarios(paths))
      result.push_back(s.path.substr(root_.string().size() + 1));
    return result;
  }

  fs::path root_;
};

TEST_F(Find, LooksIntoFoldersInOrder) {
  EXPECT_THAT(found({"a"}), ElementsAre("a/deep/x.json", "a/y.json", "a/z.json"));
  EXPECT_THAT(found({"a/"}), ElementsAre("a/deep/x.json", "a/y.json", "a/z.json"));
  EXPECT_THAT(found({"b.json", "a/y.json"}), ElementsAre("b.json", "a/y.json"));
  EXPECT_THAT(found({"a/z.json", "a"}), ElementsAre("a/z.json", "a/deep/x.json", "a/y.json"));
}

TEST_F(Find, KeepsTheFieldsOfCases) {
  const auto selections = find_scenarios({(root_ / "a:world_size=5").string()});
  ASSERT_EQ(selections.size(), 3u);
  EXPECT_THAT(selections[2].fields.world_sizes, ElementsAre(5));
  EXPECT_THAT(found({"b.json:world_size=2", "b.json:world_size=3"}),
              ElementsAre("b.json", "b.json"));
}

TEST_F(Find, AnExistingPathIsAPathWhateverItLooksLike) {
  EXPECT_THAT(found({"c:world_size=3.json"}), ElementsAre("c:world_size=3.json"));
  EXPECT_THAT(found({"c:world_size=3.json:world_size=2"}), ElementsAre("c:world_size=3.json"));
}

TEST_F(Find, PassesOnWhatIsNotThere) {
  EXPECT_THAT(found({"bb.json", "b.json", "q/r/s:world_size=2"}),
              ElementsAre("bb.json", "b.json", "q/r/s"));
}

TEST_F(Find, TellsAMisspeltField) {
  EXPECT_THAT(error_of([&] { found({"b.json:word_size=2"}); }),
              HasSubstr("unknown field \"word_size\"; did you mean \"world_size\"?"));
}

TEST_F(Find, DoesNotFollowLinksToFolders) {
  fs::create_directory_symlink(root_, root_ / "a/loop");
  EXPECT_THAT(found({"a"}), ElementsAre("a/deep/x.json", "a/y.json", "a/z.json"));
}

}  // namespace
}  // namespace distgrad
