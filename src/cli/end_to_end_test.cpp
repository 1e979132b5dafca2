// Runs the executable as a user does: scenario files in a folder of its own, exit codes, what is
// printed, the JSON report.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/folder_test.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kExecutable = DISTGRAD_BIN_DIR "/distgrad";

class EndToEnd : public FolderTest {
 protected:
  // x = 1, y = op over the ranks of (rank + 2) x, loss y²: pytorch#58005's program.
  void write_debate(const std::string& name, const std::string& subjects,
                    const std::string& more = "") {
    write(name, R"({
  "world_size": 2,
  "inputs": { "x": 1.0 },
  "steps": [ { "xx": "(rank + 2) * x" }, { "y": { "all_reduce": "xx", "op": "sum" } } ],
  "loss": "y * y",
  "objective": "sum",)" +
                    more + R"(
  "subjects": )" + subjects +
                    "\n}\n");
  }

  // Exit code; what was printed is in out_ and err_.
  int run(std::vector<std::string> arguments) {
    const int status = wait_for(start(std::move(arguments)));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  pid_t start(std::vector<std::string> arguments) {
    std::vector<char*> argv = {const_cast<char*>(kExecutable)};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const pid_t child = ::fork();
    if (child != 0) return child;
    redirect(folder_ / "stdout", STDOUT_FILENO);
    redirect(folder_ / "stderr", STDERR_FILENO);
    if (::chdir(folder_.c_str()) == 0) ::execv(kExecutable, argv.data());
    ::_exit(127);
  }

  int wait_for(pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    out_ = read(folder_ / "stdout");
    err_ = read(folder_ / "stderr");
    return status;
  }

  Json report(const std::string& name = "r.json") { return Json::parse(read(folder_ / name)); }

  static void redirect(const fs::path& path, int to) {
    ::dup2(::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644), to);
  }

  std::string out_, err_;
};

constexpr const char* kReference = R"({ "reference": "match" })";

TEST_F(EndToEnd, AMatchIsOkAndExitCodeZero) {
  write_debate("a.json", kReference);
  EXPECT_EQ(run({"run", "a.json"}), 0) << err_;
  EXPECT_THAT(out_, StartsWith("ok    a.json   match\n\n1 as expected in "));
  EXPECT_EQ(err_, "");
}

TEST_F(EndToEnd, AMismatchShowsBothSidesOfTheDebate) {
  write_debate("a.json", R"({ "torch_nn": "match", "in_place": "match" })");
  EXPECT_EQ(run({"run", "a.json"}), 1) << err_;
  EXPECT_THAT(
      out_,
      StartsWith(
          "ok    a.json:subject=torch_nn   match\n"
          "FAIL  a.json:subject=in_place   mismatch: identity-backward in step y (all_reduce)\n"
          "  measured   x̄_r = ȳ_r\n"
          "  right      x̄_r = Σ_k ȳ_k\n"
          "  x            rank 0   rank 1\n"
          "  observed         20       30\n"
          "  sum              40       60   declared: every rank's loss counts\n"
          "  mean             20       30   = observed\n"
          "  replicated       20       30   = observed: one loss, computed on every rank\n"
          "  The gradients are 1/2 of the truth on every rank: the backward of all_reduce"));
  EXPECT_THAT(out_, HasSubstr("1 as expected, 1 not in "));
  EXPECT_THAT(out_, HasSubstr("Again: distgrad run 'a.json:subject=in_place'\n"));
}

TEST_F(EndToEnd, TheCommandAfterAgainRunsThatCaseAlone) {
  write_debate("a.json", R"({ "torch_nn": "match", "in_place": "match" })");
  EXPECT_EQ(run({"run", "a.json:subject=in_place"}), 1) << err_;
  EXPECT_THAT(out_, Not(HasSubstr("torch_nn")));
  EXPECT_THAT(out_, HasSubstr("0 as expected, 1 not in "));
}

TEST_F(EndToEnd, WhatTheFileExpectsIsAsExpected) {
  write_debate("a.json", R"({ "in_place": { "verdict": "mismatch", "finding": "identity-backward",
                                            "gradients": { "x": [20.0, 30.0] } } })");
  EXPECT_EQ(run({"run", "a.json"}), 0) << out_ << err_;
  EXPECT_THAT(out_, StartsWith("ok    a.json   mismatch, as expected: identity-backward\n"));
  write_debate("a.json",
               R"({ "in_place": { "verdict": "mismatch", "gradients": { "x": [20.0, 31.0] } } })");
  EXPECT_EQ(run({"run", "a.json"}), 1) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("31"));
}

TEST_F(EndToEnd, InvalidFilesAreToldAndGoodOnesRun) {
  write_debate("good.json", kReference);
  write_debate("bad.json", kReference, "\n  \"objektive\": 1,");
  EXPECT_EQ(run({"run", "--json", "r.json", "."}), 2);
  EXPECT_THAT(out_, HasSubstr("ok    ./good.json   match\n"));
  EXPECT_THAT(out_, HasSubstr("1 as expected, 1 invalid file in "));
  EXPECT_THAT(err_, HasSubstr("./bad.json:7:3: /objektive: "));
  EXPECT_THAT(err_, HasSubstr("did you mean \"objective\"?"));
  const Json r = report();
  EXPECT_EQ(r["invalid"][0]["line"], 7);
  EXPECT_EQ(r["invalid"][0]["pointer"], "/objektive");
  EXPECT_EQ(r["cases"].size(), 1u);
}

TEST_F(EndToEnd, WhatTheSimulatorRefusesIsToldAtItsPlaceAndOnce) {
  write("bad.json", R"json({
  "world_size": [2, 3],
  "inputs": { "x": [1.0, 2.0] },
  "steps": [],
  "loss": "(x * torch.sinn(x)).sum()",
  "objective": "sum",
  "subjects": { "reference": "match", "in_place": "match" }
})json");
  EXPECT_EQ(run({"run", "--json", "r.json", "bad.json"}), 2);
  EXPECT_THAT(err_, StartsWith("bad.json:5:11: /loss: "));
  EXPECT_THAT(err_, HasSubstr("(x * torch.sinn(x)).sum()\n"));
  EXPECT_THAT(err_, HasSubstr("^"));
  const Json r = report();
  EXPECT_EQ(r["invalid"].size(), 1u) << r["invalid"];
  EXPECT_TRUE(r["cases"].empty());
}

TEST_F(EndToEnd, ASubjectThatRaisesIsBrokenUnlessExpected) {
  const std::string product = R"({
  "world_size": 2, "inputs": { "x": 2.0 },
  "steps": [ { "y": { "all_reduce": "x", "op": "product" } } ],
  "loss": "y", "objective": "sum", "subjects": { "mpi4torch": )";
  write("a.json", product + R"("match" } })");
  write("b.json", product + R"({ "verdict": "error", "collective": "all_reduce" } } })");
  EXPECT_EQ(run({"run", "a.json", "b.json"}), 3) << err_;
  EXPECT_THAT(out_, HasSubstr("ERR   a.json   error: exception on rank "));
  EXPECT_THAT(out_, HasSubstr(" in the backward of step y: "));
  EXPECT_THAT(out_, HasSubstr("ok    b.json   error, as expected: "));
  EXPECT_THAT(out_, HasSubstr("1 as expected, 1 broken in "));
  EXPECT_EQ(run({"run", "b.json"}), 0);
}

// Much work in few words.
std::string slow_scenario() {
  std::string product = "a";
  for (int i = 0; i < 100; ++i) product += " @ a";
  return R"json({
  "world_size": 2,
  "inputs": { "x": 1.0 },
  "steps": [ { "a": "torch.ones([1500, 1500]) * x / 1024" }, { "b": ")json" +
         product + R"json(" } ],
  "loss": "b.sum()",
  "objective": "sum"
})json";
}

TEST_F(EndToEnd, ACaseThatTakesTooLongIsAHangAndTheOthersGoOn) {
  std::string slow = slow_scenario();
  slow.insert(slow.find('{') + 1, "\"timeout_s\": 0.5,");
  write("a_slow.json", slow);
  write_debate("b.json", kReference);
  EXPECT_EQ(run({"run", "."}), 3) << err_;
  EXPECT_THAT(out_, HasSubstr("ERR   ./a_slow.json   error: hang"));
  EXPECT_THAT(out_, HasSubstr("ok    ./b.json   match\n"));
  EXPECT_THAT(out_, HasSubstr("Again: distgrad run './a_slow.json'\n"));
}

TEST_F(EndToEnd, InterruptedItReportsWhatWasFinishedAndLeavesNoProcess) {
  write_debate("a.json", kReference);
  write("b_slow.json", slow_scenario());
  const pid_t child = start({"run", "--timeout", "100", "--json", "r.json", "."});
  for (int i = 0; i < 300 && read(folder_ / "stdout").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ::kill(child, SIGINT);
  const int status = wait_for(child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_THAT(out_, HasSubstr("ok    ./a.json   match\n"));
  EXPECT_THAT(err_, HasSubstr("interrupted; 1 of 2 cases were finished\n"));
  const Json r = report();
  EXPECT_EQ(r["cases"].size(), 1u);
  EXPECT_EQ(r["summary"]["as_expected"], 1);
  // Every process of the run has the scenarios' folder as its own.
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc"))
    EXPECT_NE(fs::read_symlink(entry.path() / "cwd", ignored), folder_) << entry.path();
}

TEST_F(EndToEnd, TheTruthAlone) {
  write_debate("a.json", R"({ "torch_nn": "match", "in_place": { "verdict": "mismatch" } })",
               R"("truth": { "x": [40.0, 60.0] },)");
  EXPECT_EQ(run({"run", "--simulate", "--json", "r.json", "a.json"}), 0) << out_ << err_;
  EXPECT_THAT(out_,
              HasSubstr("  sum              40       60   declared: every rank's loss counts\n"));
  EXPECT_THAT(out_, Not(HasSubstr("observed")));
  EXPECT_THAT(out_, HasSubstr("1 case simulated in "));
  EXPECT_EQ(report()["cases"][0]["gradients"]["x"]["observed"], nullptr);
  write_debate("a.json", kReference, R"("truth": { "x": [40.0, 61.0] },)");
  EXPECT_EQ(run({"run", "--simulate", "a.json"}), 1);
  EXPECT_THAT(out_, HasSubstr("mismatch: truth"));
}

// Of this size the bounds are computed only where some bit differs: as do sums of three normals,
// and what in_place does.
TEST_F(EndToEnd, ALargeProgramIsJudgedAsASmallOne) {
  write("a.json", R"json({
  "world_size": 3, "dtype": "float32",
  "inputs": { "x": { "random": { "shape": [350000], "kind": "normal" } } },
  "steps": [ { "y": { "all_reduce": "x" } } ], "loss": "(y * y).mean()", "objective": "sum",
  "subjects": { "reference": "match", "in_place": { "verdict": "mismatch", "finding": "identity-backward" } } })json");
  EXPECT_EQ(run({"run", "--json", "r.json", "a.json"}), 0) << out_ << err_;
  const Json gradients = report()["cases"][0]["gradients"]["x"];
  EXPECT_GT(gradients["max_abs_error"], 0) << "the data show nothing";
  EXPECT_GT(gradients["bound"], 0);
}

// Wrong backwards of these would leave every gradient as it is.
TEST_F(EndToEnd, AMatchThatShowsNothingIsReported) {
  const auto reported = [this](const std::string& steps, const std::string& loss,
                               const std::string& more = "") {
    write("a.json",
          R"({ "world_size": 3, "objective": "sum", "inputs": {
  "x": { "random": { "shape": [2, 3], "kind": "normal" } )" +
              (more.empty() ? "} " : more) + R"( }, "steps": [)" + steps + R"(], "loss": ")" +
              loss + R"(", "subjects": { "reference": "match", "mutant:y=identity": "match" } })");
    EXPECT_EQ(run({"run", "--json", "r.json", "a.json"}), 0) << out_ << err_;
    const Json findings = report()["cases"][1]["findings"];
    if (findings.empty()) {
      EXPECT_THAT(out_, Not(HasSubstr("vacuous")));
      return std::string();
    }
    EXPECT_EQ(findings[0]["rule"], "vacuous");
    EXPECT_THAT(out_, HasSubstr("match, but vacuous"));
    EXPECT_THAT(out_, HasSubstr("2 as expected (2 vacuous) in"));
    EXPECT_EQ(run({"run", "--strict", "a.json"}), 1) << out_;
    EXPECT_THAT(out_, HasSubstr("FAIL"));
    EXPECT_THAT(out_, HasSubstr("By finding: 2 vacuous."));
    return findings[0]["text"].get<std::string>().substr(0, 24);
  };
  const std::string all_zero = "Every gradient is 0 or N", nowhere = "No gradient goes through";
  const std::string sum = R"({ "y": { "all_reduce": "x" } })";
  EXPECT_EQ(reported(sum, "(y * 0).sum()"), all_zero);
  EXPECT_EQ(reported(sum, "(y.detach() * x.detach()).sum()"), all_zero);
  EXPECT_EQ(reported(sum, "(x * x).sum()"), nowhere);
  EXPECT_EQ(reported(sum, "(y.detach() * x).sum()"), nowhere);
  EXPECT_EQ(reported(sum, "(y * 0 + x).sum()"), nowhere);
  const std::string of_constants =
      R"json({ "c": "x.detach()" }, { "y": { "all_reduce": "c" } })json";
  EXPECT_EQ(reported(of_constants, "(x * y).sum()"), nowhere);
  EXPECT_EQ(reported(sum, "(x * x).sum()", R"(, "layout": "replicate" } }, "sync": { "x": "sum" )"),
            "");
}

// Of one element and of one rank: identity-backward is wrong there.
TEST_F(EndToEnd, AMatchThatShowsLittleIsNoVacuousOne) {
  write("a.json", R"json({ "world_size": 3, "objective": "sum", "inputs": {
    "x": { "random": { "shape": [2, 3], "kind": "normal" } } },
  "steps": [{ "y": { "all_reduce": "x" } }], "loss": "(rank == 2) * y[1, 2]",
  "subjects": { "reference": "match",
                "mutant:y=identity": { "verdict": "mismatch", "finding": "identity-backward" } } })json");
  EXPECT_EQ(run({"run", "--strict", "a.json"}), 0) << out_ << err_;
  EXPECT_THAT(out_, Not(HasSubstr("vacuous")));
}

// A file may say that a case shows nothing; then one that shows something is not as expected.
TEST_F(EndToEnd, AVacuousMatchCanBeExpected) {
  const std::string expected = R"({ "reference": { "verdict": "match", "finding": "vacuous" } })";
  write("a.json",
        R"({ "world_size": 2, "inputs": { "x": 0.0 }, "steps": [{ "y": { "all_reduce": "x" } }],
  "loss": "y * y", "objective": "sum", "subjects": )" +
            expected + "}");
  EXPECT_EQ(run({"run", "--strict", "a.json"}), 0) << out_ << err_;
  write_debate("b.json", expected);
  EXPECT_EQ(run({"run", "b.json"}), 1);
  EXPECT_THAT(out_, HasSubstr("expected the finding vacuous, found none"));
}

// Beyond 1 MiB ranks say of what is as expected that it is. Here rank 1 can, and the others cannot.
TEST_F(EndToEnd, ARankThatIsAsExpectedHidesNoneThatIsNot) {
  write("a.json", R"json({
  "world_size": 3, "inputs": { "x": { "random": { "shape": [60, 1000], "kind": "integers" } } },
  "steps": [ { "xx": "(rank + 2) * x.t()" }, { "y": { "all_reduce": "xx" } } ],
  "loss": "y.sum() * rank * (2 - rank)", "objective": "sum",
  "subjects": { "reference": "match",
                "mutant:y=identity": { "verdict": "mismatch", "finding": "identity-backward" } } })json");
  EXPECT_EQ(run({"run", "--json", "r.json", "a.json"}), 0) << out_ << err_;
  const Json right = report()["cases"][0]["gradients"]["x"],
             wrong = report()["cases"][1]["gradients"]["x"];
  EXPECT_EQ(right["max_abs_error"], 0);
  EXPECT_EQ(wrong["max_abs_error"], 4) << "rank 2 times 1, and not 0";
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const Json norms = right["observed"]["by_rank"][rank]["norms"];
    EXPECT_EQ(norms, right["truth"]["by_rank"][rank]["norms"]);
    EXPECT_GT(norms["max"], 0);
    EXPECT_EQ(wrong["observed"]["by_rank"][rank]["norms"] == norms, rank == 1);
  }
}

// The two share 320 MiB: five tensors of 32 MiB on each, which they had, are too many.
TEST_F(EndToEnd, ARankHoldsThreeTensorsOfALargeProgram) {
  write("a.json", R"json({
  "world_size": 2, "inputs": { "x": { "random": { "shape": [4194304], "kind": "integers" } } },
  "steps": [ { "xx": "(rank + 2) * x" }, { "y": { "all_reduce": "xx" } } ],
  "loss": "y.sum() * (rank + 1)", "objective": "sum" })json");
  EXPECT_EQ(run({"run", "--max-memory", "320M", "a.json"}), 0) << out_ << err_;
}

TEST_F(EndToEnd, MoreRanksThanTheMemoryHasStacksForAreRefusedAtOnce) {
  write("a.json", R"json({
  "world_size": 3, "inputs": { "x": { "expr": "torch.ones(2) + rank" } },
  "steps": [ { "y": { "all_reduce": "x" } } ], "loss": "y.sum() * (rank + 1)", "objective": "sum" })json");
  EXPECT_EQ(run({"run", "--max-memory", "64M", "--world-size", "100", "a.json"}), 4) << out_;
  EXPECT_THAT(out_,
              HasSubstr("100 ranks cannot run on this machine: each may have 0 MiB of memory"));
  EXPECT_THAT(out_, HasSubstr("--simulate starts none"));
  EXPECT_EQ(run({"run", "--max-memory", "64M", "--world-size", "1", "a.json"}), 0) << out_ << err_;
  EXPECT_EQ(run({"run", "--max-memory", "64M", "--world-size", "100", "--simulate", "a.json"}), 0);
}

TEST_F(EndToEnd, AnAuditTellsWrongFromRightForAnotherObjective) {
  EXPECT_EQ(run({"audit", "torch_nn", "--collective", "all_reduce", "--json", "a.json", "--out",
                 "failing"}),
            1)
      << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("right for sum and mean; wrong for replicated: adjoint, P->R\n       "
                              "       x̄_r = Σ_k ȳ_k\n"));
  EXPECT_THAT(
      out_,
      HasSubstr("all_reduce product, all_reduce min, all_reduce max: wrong, same-op-backward\n"));
  const Json audit = Json::parse(read(folder_ / "a.json"));
  EXPECT_EQ(audit["collectives"][0]["right_for"], Json({"sum", "mean"}));
  EXPECT_EQ(audit["collectives"][2]["rule"], "same-op-backward");
  EXPECT_EQ(run({"run", "failing"}), 1) << out_ << err_;
  EXPECT_THAT(out_,
              HasSubstr("FAIL  failing/all_reduce_product.json   mismatch: same-op-backward"));

  const std::vector<std::string> sum = {
      "audit", "megatron", "--collective", "all_reduce",
      "--op",  "sum",      "--without",    "dtype,shape,cotangent,operand"};
  EXPECT_EQ(run(sum), 1) << out_;
  EXPECT_THAT(
      out_,
      HasSubstr("(DistributedDataParallel): identity-backward, P->I\n              x̄_r = ȳ_r\n"));
  for (const auto& [objective, code] : {std::pair{"replicated", 0}, std::pair{"sum", 1}}) {
    std::vector<std::string> asked = sum;
    asked.insert(asked.end(), {"--objective", objective});
    EXPECT_EQ(run(asked), code) << objective;
  }
  EXPECT_EQ(run({"audit", "simclr", "--collective", "all_reduce"}), 4) << "not offered";
  EXPECT_EQ(run({"audit", "megatorn"}), 2);
  EXPECT_THAT(err_, HasSubstr("did you mean \"megatron\""));
}

// ---- subjects in Python: ranks of the interpreter that the build found

constexpr const char* kGather = R"py(
import torch
import torch.distributed as dist

class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return tuple(parts)

    @staticmethod
    def backward(ctx, *cotangents):
        return cotangents[dist.get_rank()]

def all_gather(x):
    return Gather.apply(x)

def dies_on_rank_1(x):
    if dist.get_rank() == 1:
        import os
        os.abort()
    return Gather.apply(x)

def raises_in_backward(x):
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()
        @staticmethod
        def backward(ctx, cotangent):
            if dist.get_rank() == 1:
                raise LookupError("no such luck")
            return cotangent
    return Gather.apply(Raises.apply(x))
)py";

constexpr const char* kGatherScenario = R"json({
  "world_size": 3, "inputs": { "x": { "expr": "torch.tensor([1.0, 2.0]) * (rank + 1)" } },
  "steps": [ { "y": { "all_gather": "x" } } ], "loss": "(y * y).sum() * (rank + 1)", "objective": "sum" })json";

TEST_F(EndToEnd, AUsersFunctionIsRunAndItsMistakeNamed) {
  write("layers.py", kGather);
  write("a.json", kGatherScenario);
  EXPECT_EQ(run({"run", "a.json", "--python", DISTGRAD_PYTHON, "--subject",
                 "python:layers.py:all_gather"}),
            1)
      << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("mismatch: own-slice in step y (all_gather)"));
  EXPECT_EQ(run({"audit", "--python", DISTGRAD_PYTHON, "all_gather=python:layers.py:Gather.apply"}),
            1)
      << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("(DistributedDataParallel): own-slice, V->I"));
}

TEST_F(EndToEnd, AUsersFunctionThatFailsCostsItsCaseOnly) {
  write("layers.py", kGather);
  write("a.json", kGatherScenario);
  write_debate("b.json", kReference);  // no all_gather in it
  const auto with = [&](const std::string& name) {
    return run({"run", ".", "--python", DISTGRAD_PYTHON, "--subject",
                "all_gather=python:layers.py:" + name});
  };
  EXPECT_EQ(with("dies_on_rank_1"), 3) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("error: crash on rank 1 in step y: killed by SIGABRT"));
  EXPECT_THAT(out_, HasSubstr("ok    ./b.json"));
  EXPECT_EQ(with("raises_in_backward"), 3) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("LookupError: no such luck"));
  EXPECT_THAT(out_, HasSubstr("rank 1"));
  EXPECT_THAT(out_, HasSubstr("layers.py"));
  EXPECT_THAT(out_, HasSubstr("ok    ./b.json"));
}

TEST_F(EndToEnd, AUsersFunctionThatCannotBeLoadedIsTheUsersError) {
  write("a.json", kGatherScenario);
  write("layers.py", kGather);
  write("broken.py", "import nothing_of_this_name\n");
  const auto with = [&](const std::string& subject) {
    return run({"run", "a.json", "--python", DISTGRAD_PYTHON, "--subject", subject});
  };
  EXPECT_EQ(with("python:broken.py:all_gather"), 2) << out_ << err_;
  EXPECT_THAT(err_, HasSubstr("nothing_of_this_name"));
  EXPECT_EQ(with("python:missing.py:all_gather"), 2);
  EXPECT_THAT(err_, HasSubstr("missing.py"));
  EXPECT_EQ(with("all_gather=python:layers.py:al_gather"), 2);
  EXPECT_THAT(err_, HasSubstr("all_gather"));
  EXPECT_EQ(run({"run", "a.json", "--python", "/nowhere/python", "--subject", "python:layers.py"}),
            2);
  EXPECT_THAT(err_, HasSubstr("--python: there is no /nowhere/python"));
}

TEST_F(EndToEnd, CodeThatAFileNamesIsNotRunUnasked) {
  write("layers.py", kGather);
  std::string text = kGatherScenario;
  text.replace(text.rfind('}'), 1, R"(, "subjects": { "python:layers.py:all_gather": "match" } })");
  write("a.json", text);
  EXPECT_EQ(run({"run", "a.json"}), 4) << out_;
  EXPECT_THAT(out_, HasSubstr("runs only with --allow-code"));
  EXPECT_EQ(run({"run", "a.json", "--allow-code", "--python", DISTGRAD_PYTHON}), 1) << out_ << err_;
}

// ---- operators of a shared library (tests/operators)

TEST_F(EndToEnd, AnOperatorOfALibraryIsRunAndItsMistakeNamed) {
  const std::string library =
      "library:" DISTGRAD_BIN_DIR "/../tests/example_operators.so:example::";
  write_debate("a.json", kReference);
  const auto with = [&](const std::string& name) {
    return run({"run", "a.json", "--subject", "all_reduce=" + library + name});
  };
  EXPECT_EQ(with("all_reduce"), 0) << out_ << err_;
  EXPECT_EQ(with("reduce_from_region"), 1) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("mismatch: identity-backward in step y (all_reduce)"));
  EXPECT_EQ(with("al_reduce"), 2) << out_ << err_;
  EXPECT_THAT(err_, HasSubstr("registers no operator example::al_reduce; there is example::"));
  EXPECT_EQ(with("compressed"), 2) << out_ << err_;
  EXPECT_THAT(err_, HasSubstr("what to pass for bits is not known"));
  EXPECT_EQ(run({"run", "a.json", "--subject", "all_reduce=library:missing.so:a::b"}), 2)
      << out_ << err_;
  EXPECT_THAT(err_, HasSubstr("missing.so"));

  // Right for the mean of two ranks' losses, and for no objective with three ranks; in subgroups
  // too.
  EXPECT_EQ(run({"audit", "all_reduce=" + library + "halved"}), 1) << out_ << err_;
  EXPECT_EQ(run({"audit", "all_reduce=" + library + "in_memory_order"}), 1) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("5/7")) << "the transposed cotangent, and nothing else:\n" << out_;
  EXPECT_THAT(out_, HasSubstr("all_reduce sum: wrong, contiguity\n"));
  EXPECT_EQ(run({"audit", "all_reduce=" + library + "all_reduce"}), 0) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("right for sum and mean; wrong for replicated: adjoint, P->R\n       "
                              "       x̄_r = Σ_k ȳ_k\n"));
  EXPECT_EQ(run({"audit", "all_reduce=" + library + "reduce_from_region"}), 1) << out_ << err_;
  EXPECT_THAT(
      out_,
      HasSubstr("(DistributedDataParallel): identity-backward, P->I\n              x̄_r = ȳ_r\n"));
}

TEST_F(EndToEnd, AnOperatorOfALibraryMayTakeAGroupAndIsSeenToWriteIntoItsOperand) {
  const std::string library =
      "library:" DISTGRAD_BIN_DIR "/../tests/example_operators.so:example::";
  const auto audit = [&](const std::string& subject) {
    return run({"audit", subject, "--without", "cotangent,graph,dtype,shape"});
  };
  EXPECT_EQ(audit("all_reduce=" + library + "by_group"), 0) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("right for sum and mean"));
  EXPECT_EQ(audit("all_reduce=" + library + "in_its_operand"), 1) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("it writes into its operand"));
  EXPECT_EQ(audit(library + "all_reduce"), 0) << out_ << err_;  // its name says which it is
  EXPECT_EQ(run({"audit", "all_reduce=" + library + "all_reduce@async"}), 2);
  EXPECT_THAT(err_, HasSubstr("has the mode shared alone, and not \"async\""));
}

TEST_F(EndToEnd, AnOperatorOfALibraryMayStackOrJoinWhatItGathers) {
  const std::string gather =
      "all_gather=library:" DISTGRAD_BIN_DIR "/../tests/example_operators.so:example::all_gather";
  const auto audit = [&](const std::string& name) {
    return run({"audit", gather + name, "--without", "cotangent,operand,graph,dtype"});
  };
  for (const char* name : {"", "_joined"}) {
    EXPECT_EQ(audit(name), 0) << out_ << err_;
    EXPECT_THAT(out_, HasSubstr("right for sum and mean")) << name;
  }
  EXPECT_EQ(audit("_own"), 1) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("own-slice"));
}

TEST_F(EndToEnd, NothingRan) {
  write_debate("a.json", R"({ "simclr": "match" })");
  EXPECT_EQ(run({"run", "--filter", "nowhere", "a.json"}), 4);
  EXPECT_EQ(run({"run", "a.json"}), 4) << out_;  // simclr has no all_reduce
  EXPECT_THAT(out_, HasSubstr("skip  a.json   "));
  EXPECT_EQ(run({"run", "--allow-empty", "a.json"}), 0);
  EXPECT_EQ(run({"run", "--strict", "a.json"}), 1);
  write_debate("a.json", R"({ "simclr": { "verdict": "skipped" } })");
  EXPECT_EQ(run({"run", "a.json"}), 0) << out_;
}

TEST_F(EndToEnd, AnotherObjectiveIsSaidToMakeTheExpectationsVoid) {
  write_debate("a.json", R"({ "in_place": { "verdict": "mismatch" } })",
               R"("truth": { "x": [40.0, 60.0] },)");
  EXPECT_EQ(run({"run", "--objective", "replicated", "a.json"}), 0) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("ok    a.json:objective=replicated   match\n"));
  EXPECT_THAT(out_, HasSubstr("Note (1 case): "));
}

TEST_F(EndToEnd, TheJsonReportFitsItsSchema) {
  write_debate("a.json", R"({ "torch_nn": "match", "in_place": "match", "simclr": "match" })");
  write("bad.json", "{");
  EXPECT_EQ(run({"schema", "report"}), 0);
  write("schema.json", out_);
  EXPECT_EQ(run({"run", "--json", "-", "."}), 2);
  const Json r = Json::parse(out_);  // and nothing else on standard output
  EXPECT_EQ(r["cases"].size(), 3u);
  EXPECT_EQ(r["cases"][1]["findings"][0]["rule"], "identity-backward");
  EXPECT_EQ(r["cases"][1]["gradients"]["x"]["observed"]["by_rank"], Json({20.0, 30.0}));
  EXPECT_EQ(r["command"], "distgrad run --json - .");
  write("r.json", out_);
  if (std::system("python3 -c 'import jsonschema' 2>/dev/null") != 0)
    GTEST_SKIP() << "python3 has no jsonschema";
  const std::string validate =
      "cd " + folder_.string() +
      " && python3 -c \"import json, jsonschema; "
      "jsonschema.validate(json.load(open('r.json')), json.load(open('schema.json')))\"";
  EXPECT_EQ(std::system(validate.c_str()), 0);
}

TEST_F(EndToEnd, ManyCasesAreALineAFile) {
  write_debate("a.json", kReference);
  std::string sizes = "1";
  for (int n = 2; n <= 4; ++n) sizes += "," + std::to_string(n);
  const std::vector<std::string> many = {"run",
                                         "--world-size",
                                         sizes,
                                         "--dtype",
                                         "float64,float32,bfloat16,float16",
                                         "--subject",
                                         "reference,torch_nn,fvcore,tensorflow",
                                         "a.json"};
  EXPECT_EQ(run(many), 0) << out_ << err_;
  EXPECT_THAT(out_, StartsWith("ok    a.json   64 cases as expected\n"));
}

TEST_F(EndToEnd, MistakesOnTheCommandLine) {
  EXPECT_EQ(run({"rnu"}), 2);
  EXPECT_EQ(err_, "distgrad: unknown command \"rnu\"; did you mean \"run\"?\n");
  EXPECT_EQ(run({"run", "--subjekt", "x"}), 2);
  EXPECT_EQ(err_, "distgrad: run: unknown option \"--subjekt\"; did you mean \"--subject\"?\n");
  EXPECT_EQ(run({"run", "nowhere.json"}), 2);
  EXPECT_THAT(err_, HasSubstr("nowhere.json"));
  EXPECT_EQ(run({"list", "subject"}), 2);
  EXPECT_EQ(err_, "distgrad: list: nothing is called \"subject\"; did you mean \"subjects\"?\n");
  EXPECT_EQ(run({}), 2);
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_THAT(out_, HasSubstr("Usage: distgrad COMMAND"));
  EXPECT_EQ(run({"help", "run"}), 0);
  EXPECT_THAT(out_, HasSubstr("Usage: distgrad run [OPTION...] [PATH...]"));
  EXPECT_EQ(run({"--version"}), 0);
  EXPECT_THAT(out_, StartsWith("distgrad "));
  write_debate("a.json", kReference);
  EXPECT_EQ(run({"run", "--json", "no/such/r.json", "a.json"}), 2);
  EXPECT_THAT(err_, HasSubstr("cannot write no/such/r.json"));
}

TEST_F(EndToEnd, Lists) {
  write_debate("a.json", R"({ "torch_nn": "match", "in_place": "match" })");
  EXPECT_EQ(run({"list", "cases", "a.json"}), 0);
  EXPECT_EQ(out_, "a.json:subject=torch_nn\na.json:subject=in_place\n");
  EXPECT_EQ(run({"list", "findings", "--json"}), 0);
  EXPECT_EQ(Json::parse(out_).size(), 28u);
  EXPECT_EQ(run({"list", "subjects"}), 0);
  EXPECT_THAT(out_, HasSubstr("torch_nn"));
}

TEST_F(EndToEnd, DoctorFindsWhatRunsNeed) {
  EXPECT_EQ(run({"doctor"}), 0) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("libtorch_cpu.so"));
  EXPECT_THAT(out_, HasSubstr("all_reduce sum"));
  EXPECT_THAT(out_, Not(HasSubstr("MISS")));
}

}  // namespace
}  // namespace distgrad
