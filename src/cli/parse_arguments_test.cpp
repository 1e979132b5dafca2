#include "cli/parse_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "cli/run_options.h"

namespace distgrad {
namespace {

using testing::ElementsAre;

RunOptions parsed(const Arguments& arguments) {
  return std::get<RunOptions>(parse_run_options(arguments));
}

std::string complaint(const Arguments& arguments) {
  try {
    parse_run_options(arguments);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

TEST(RunOptions, Defaults) {
  const RunOptions options = parsed({});
  EXPECT_TRUE(options.paths.empty());
  EXPECT_TRUE(options.overrides.subjects.empty());
  EXPECT_EQ(options.color, Color::kAuto);
  EXPECT_FALSE(options.overrides.timeout_s);
}

TEST(RunOptions, AListOptionDoesNotSwallowThePathsBehindIt) {
  const RunOptions options = parsed({"--subject", "torch_nn,in_place", "a.json", "--world-size=2,3",
                                     "--world-size", "4", "b.json:subject=reference,world_size=2"});
  EXPECT_THAT(options.overrides.subjects, ElementsAre("torch_nn", "in_place"));
  EXPECT_THAT(options.overrides.world_sizes, ElementsAre(2, 3, 4));
  EXPECT_THAT(options.paths, ElementsAre("a.json", "b.json:subject=reference,world_size=2"));
}

TEST(RunOptions, EverythingElse) {
  const RunOptions options = parsed({"--dtype",
                                     "float32,bfloat16",
                                     "--backend",
                                     "gloo",
                                     "--objective",
                                     "mean,rank:1",
                                     "--filter",
                                     "debate",
                                     "--simulate",
                                     "--timeout",
                                     "2.5",
                                     "--strict",
                                     "--allow-empty",
                                     "--json",
                                     "-",
                                     "--junit",
                                     "j.xml",
                                     "--full",
                                     "--verbose",
                                     "--color",
                                     "never",
                                     "--fail-fast",
                                     "--shard",
                                     "2/4",
                                     "--durations",
                                     "10"});
  EXPECT_THAT(options.overrides.dtypes, ElementsAre(DType::kFloat32, DType::kBFloat16));
  EXPECT_EQ(options.overrides.objectives.size(), 2u);
  EXPECT_EQ(options.overrides.objectives[1].rank, 1);
  EXPECT_EQ(options.overrides.filter, "debate");
  EXPECT_TRUE(options.simulate && options.strict && options.allow_empty && options.full &&
              options.verbose);
  EXPECT_EQ(options.overrides.timeout_s, 2.5);
  ASSERT_EQ(options.reports.size(), 2u);
  EXPECT_EQ(options.reports[0].format->option, "--json");
  EXPECT_EQ(options.reports[0].path, "-");
  EXPECT_EQ(options.reports[1].format->option, "--junit");
  EXPECT_EQ(options.reports[1].path, "j.xml");
  EXPECT_TRUE(prints_report(options.reports) && options.fail_fast);
  EXPECT_EQ(options.shard.index, 2);
  EXPECT_EQ(options.shard.count, 4);
  EXPECT_EQ(options.durations, 10u);
  EXPECT_EQ(options.color, Color::kNever);
  EXPECT_EQ(again_text(options), "distgrad run --simulate --timeout 2.5 --strict");
}

TEST(RunOptions, SubjectsForOneCollectiveEachAreOneUntilOneHasTwo) {
  const auto subjects = [](const Arguments& arguments) {
    return parsed(arguments).overrides.subjects;
  };
  EXPECT_THAT(subjects({"--subject", "all_gather=simclr", "--subject", "torch_nn", "--subject",
                        "all_reduce=in_place"}),
              ElementsAre("torch_nn", "all_gather=simclr+all_reduce=in_place"));
  EXPECT_THAT(subjects({"--subject", "all_gather=simclr", "--subject", "all_gather=torch_nn"}),
              ElementsAre("all_gather=simclr", "all_gather=torch_nn"));
  EXPECT_THAT(subjects({"--subject", "all_gather=simclr+all_reduce=in_place,all_reduce=torch_nn",
                        "--subject", "broadcast=in_place"}),
              ElementsAre("all_gather=simclr+all_reduce=in_place",
                          "all_reduce=torch_nn+broadcast=in_place"));
  EXPECT_EQ(
      complaint({"--subject", "all_gather=simclr+all_gather=torch_nn"}),
      "run: --subject: all_gather is given twice in \"all_gather=simclr+all_gather=torch_nn\"");
}

TEST(RunOptions, ShortNames) {
  EXPECT_TRUE(parsed({"-v"}).verbose);
  EXPECT_TRUE(parsed({"-q", "a.json"}).quiet);
}

TEST(RunOptions, AShardIsAPartOfAWhole) {
  for (const char* wrong : {"0/4", "5/4", "1/0", "1", "/", "a/b", "1/4x", "-1/4", "1/4/2", " 1/4"})
    EXPECT_EQ(complaint({"--shard", wrong}),
              std::string("run: --shard: \"") + wrong +
                  "\" is not I/N, the I-th of N parts, such as 1/4 or 4/4");
  EXPECT_EQ(parsed({"--shard", "4/4"}).shard.index, 4);
}

TEST(RunOptions, NoTwoReportsInOneFile) {
  EXPECT_EQ(complaint({"--json", "-", "--sarif", "-"}),
            "run: --sarif: standard output holds another report already");
  EXPECT_EQ(complaint({"--junit", "r.xml", "--markdown", "r.xml"}),
            "run: --markdown: r.xml holds another report already");
}

TEST(RunOptions, MistakesAreToldWithWhatWasMeant) {
  EXPECT_EQ(complaint({"--subjekt", "torch_nn"}),
            "run: unknown option \"--subjekt\"; did you mean \"--subject\"?");
  EXPECT_EQ(complaint({"--wordl-size=3"}),
            "run: unknown option \"--wordl-size\"; did you mean \"--world-size\"?");
  EXPECT_EQ(complaint({"--mean", "g"}),
            "run: unknown option \"--mean\"; `distgrad run --help` lists what there is");
  EXPECT_EQ(complaint({"--dtype", "flaot32"}),
            "run: --dtype: unknown dtype \"flaot32\"; did you mean \"float32\"?");
  EXPECT_EQ(complaint({"--backend", "mpi"}),
            "run: --backend: unknown backend \"mpi\"; it is \"gloo\" or \"nccl\"");
  EXPECT_EQ(complaint({"--subject", "torchnn"}),
            "run: --subject: unknown subject \"torchnn\"; did you mean \"torch_nn\"?");
  EXPECT_EQ(complaint({"--world-size", "0"}),
            "run: --world-size: world_size must be an integer from 1 to 4096, not \"0\"");
  EXPECT_EQ(complaint({"--world-size", "2x"}),
            "run: --world-size: world_size must be an integer from 1 to 4096, not \"2x\"");
  EXPECT_NE(complaint({"--objective", "median"}), "");
  EXPECT_NE(complaint({"--golden", "golden", "--simulate"}), "");
  EXPECT_EQ(complaint({"--timeout", "0"}), "run: --timeout is a number of seconds above 0");
  EXPECT_EQ(complaint({"--timeout", "nan"}), "run: --timeout is a number of seconds above 0");
  EXPECT_NE(complaint({"--timeout"}), "");
  EXPECT_EQ(complaint({"--quiet", "--verbose"}), "run: either --quiet or --verbose");
}

TEST(RunOptions, TheHelpFitsAScreenAndHasAnExample) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(std::get<ExitCode>(parse_run_options({"--help"})), ExitCode::kAsExpected);
  const std::string help = testing::internal::GetCapturedStdout();
  EXPECT_LE(std::count(help.begin(), help.end(), '\n'), 44) << help;
  EXPECT_THAT(help, testing::HasSubstr("distgrad run scenarios/debate\n"));
  for (std::size_t at = 0; at < help.size();) {
    const std::size_t end = help.find('\n', at);
    EXPECT_LE(end - at, 80u) << help.substr(at, end - at);
    at = end + 1;
  }
}

}  // namespace
}  // namespace distgrad
