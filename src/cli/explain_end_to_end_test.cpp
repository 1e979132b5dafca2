// distgrad explain as a user runs it: what stands where, and the exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "cli/command_test.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kDebate = DISTGRAD_SOURCE_DIR "/scenarios/debate/all_reduce_sum.json";

class ExplainCase : public CommandTest {
 protected:
  int explain(const std::string& arguments) { return distgrad("explain " + arguments); }

  // The lines of a value, up to the next one's.
  std::string lines_of(const std::string& title) const {
    std::istringstream lines(out_);
    std::string found;
    bool inside = false;
    for (std::string line; std::getline(lines, line);) {
      const bool is_title = line.size() > 2 && line.starts_with("  ") && line[2] != ' ';
      if (is_title || line.empty()) inside = line.starts_with("  " + title);
      if (inside) found += line + "\n";
    }
    return found;
  }
};

TEST_F(ExplainCase, AnIdentityBackwardPartsAtTheCollective) {
  EXPECT_EQ(explain(std::string("'") + kDebate + ":subject=in_place'"), 0) << err_;
  EXPECT_EQ(lines_of("xx ="),
            "  xx = (rank + 2) * x\n"
            "    value                    2        3\n"
            "    cotangent, true         20       20\n"
            "    cotangent, ranks'       10       10\n");
  EXPECT_EQ(
      lines_of("y ="),
      "  y = all_reduce(xx, op=sum)\n"
      "    >>> the cotangents part here: the backward of this step does not give what is right\n"
      "    value                    5        5\n"
      "    cotangent               10       10\n");
  EXPECT_THAT(lines_of("x "), HasSubstr("    gradient, true          40       60\n"
                                        "    gradient, ranks'        20       30\n"));
  EXPECT_THAT(
      out_,
      HasSubstr("In the backward of step y: what it gives to its operand is not what is right"));
  EXPECT_THAT(out_, HasSubstr("Measured: step y (all_reduce) x̄_r = ȳ_r; right is x̄_r = Σ_k ȳ_k."));
  EXPECT_THAT(out_, HasSubstr("  sum              40       60   declared"));
  EXPECT_THAT(out_, HasSubstr("an autograd kernel was not registered"));
  EXPECT_THAT(out_, HasSubstr("\nAgain: distgrad explain '"));
}

TEST_F(ExplainCase, AMatchPartsNowhere) {
  EXPECT_EQ(explain(std::string("'") + kDebate + ":subject=torch_nn'"), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("Nowhere"));
  EXPECT_THAT(out_, Not(HasSubstr("ranks'\"")));
  EXPECT_THAT(out_, Not(HasSubstr(">>>")));
  EXPECT_THAT(lines_of("xx ="), HasSubstr("    cotangent               20       20\n"));
}

// Of two collectives one is right, and the wrong one is not the last.
TEST_F(ExplainCase, OfTwoCollectivesTheWrongOneIsMarked) {
  write("chain.json", R"({ "world_size": 2,
    "inputs": { "x": { "by_rank": [1.0, 2.0] } },
    "steps": [ { "a": "3 * x" }, { "g": { "all_gather": "a" } }, { "b": "(rank + 1) * (g * g).sum() + 0" },
               { "s": { "all_reduce": "b" } } ],
    "loss": "(rank + 2) * s", "objective": "sum" })");
  EXPECT_EQ(explain("chain.json --subject all_gather=simclr"), 1) << err_;
  EXPECT_THAT(lines_of("g ="), HasSubstr(">>> the cotangents part here")) << out_;
  EXPECT_THAT(lines_of("s ="), Not(HasSubstr(">>>")));
  EXPECT_THAT(lines_of("b ="), Not(HasSubstr("ranks'")));
  EXPECT_THAT(lines_of("a ="), HasSubstr("cotangent, ranks'"));
  // The other way round.
  EXPECT_EQ(explain("chain.json --subject all_reduce=in_place"), 1) << err_;
  EXPECT_THAT(lines_of("s ="), HasSubstr(">>> the cotangents part here")) << out_;
  EXPECT_THAT(lines_of("g ="), Not(HasSubstr(">>>")));
  EXPECT_THAT(lines_of("b ="), HasSubstr("cotangent, ranks'"));
}

// Every collective's backward is the adjoint: it is what backward starts with that is not the
// declared J's.
TEST_F(ExplainCase, AnotherObjectivePartsWhereBackwardStarts) {
  EXPECT_EQ(explain(std::string("'") + kDebate + ":subject=torch_nn' --objective replicated"), 1)
      << err_;
  EXPECT_THAT(lines_of("loss"), HasSubstr(">>> backward starts on another scale here"));
  EXPECT_THAT(lines_of("loss"), HasSubstr("    cotangent, true        0.5      0.5\n"
                                          "    cotangent, ranks'        1        1\n"));
  EXPECT_THAT(lines_of("y ="), Not(HasSubstr(">>>")));
  EXPECT_THAT(out_, HasSubstr("J counts 1/2 of each"));
}

TEST_F(ExplainCase, AWrongForwardValueIsShownBesideTheSimulated) {
  write("twice.py",
        "import torch.distributed as dist\n"
        "def all_reduce(x, op='sum', group=None):\n"
        "    y = x.clone()\n"
        "    dist.all_reduce(y)\n"
        "    return 2 * y\n");
  write("f.json", R"({ "world_size": 2, "inputs": { "x": 1.0 },
    "steps": [ { "y": { "all_reduce": "(rank + 2) * x" } }, { "z": "y + 1" }, { "w": { "all_reduce": "z" } } ],
    "loss": "w", "objective": "sum" })");
  EXPECT_EQ(explain("f.json --subject python:twice.py:all_reduce"), 1) << out_ << err_;
  EXPECT_THAT(lines_of("y ="), HasSubstr(">>> the values part here, in forward, on ranks 0, 1"));
  EXPECT_THAT(lines_of("y ="), HasSubstr("    value, simulated         5        5\n"
                                         "    value, observed         10       10\n"));
  EXPECT_THAT(lines_of("w ="), HasSubstr("value, observed"));
  EXPECT_THAT(lines_of("w ="), Not(HasSubstr(">>>")));
}

TEST_F(ExplainCase, ADroppedCotangentIsMissingBeforeTheStepAndNotBehindIt) {
  write("dropped.py", R"py(
import torch
import torch.distributed as dist
class Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y
    @staticmethod
    def backward(ctx, g):
        g = g * (0 if dist.get_rank() == 1 else 1)
        dist.all_reduce(g)
        return g
def all_reduce(x, op='sum', group=None):
    return Dropped.apply(x)
)py");
  write("d.json", R"({ "world_size": 2, "inputs": { "x": { "by_rank": [1.0, 2.0] } },
    "steps": [ { "w": "3 * x" }, { "y": { "all_reduce": "w" } }, { "z": "y * y" } ],
    "loss": "(rank + 1) * z", "objective": "sum" })");
  EXPECT_EQ(explain("d.json --subject python:dropped.py:all_reduce"), 1) << out_ << err_;
  EXPECT_THAT(lines_of("z ="), HasSubstr("    cotangent                1        2\n"));
  EXPECT_THAT(lines_of("y ="), HasSubstr(">>> the cotangents part here"));
  EXPECT_THAT(lines_of("y ="), HasSubstr("    cotangent               18       36\n"));
  EXPECT_THAT(lines_of("w ="), HasSubstr("    cotangent, true         54       54\n"
                                         "    cotangent, ranks'       18       18\n"));
}

TEST_F(ExplainCase, OfSeveralCasesOneIsToBeChosen) {
  EXPECT_EQ(explain(kDebate), 2);
  EXPECT_EQ(out_, "");
  EXPECT_THAT(err_, StartsWith("distgrad: explain: "));
  EXPECT_THAT(err_, HasSubstr(":subject=torch_nn'"));
  EXPECT_THAT(err_, HasSubstr("..."));
}

TEST_F(ExplainCase, ASubjectThatRaisesIsToldWithTheProgram) {
  EXPECT_EQ(explain(std::string("'") + kDebate + ":subject=diffdist'"), 0) << "the file expects it";
  write("a.json",
        R"({ "world_size": 2, "inputs": { "x": 1.0 }, "steps": [ { "y": { "all_reduce": "x" } } ],
    "loss": "y", "objective": "sum" })");
  EXPECT_EQ(explain("a.json --subject diffdist"), 3) << out_;
  EXPECT_THAT(lines_of("y ="), HasSubstr("did not get through here (exception)"));
  EXPECT_THAT(out_, HasSubstr("is not implemented"));
  EXPECT_THAT(out_, Not(HasSubstr("Nowhere")));
}

TEST_F(ExplainCase, ASkippedCaseHasItsReasonAndExitCodeFour) {
  write("a.json",
        R"({ "world_size": 2, "inputs": { "x": 1.0 }, "steps": [ { "y": { "all_reduce": "x" } } ],
    "loss": "y", "objective": "sum" })");
  EXPECT_EQ(explain("a.json --subject simclr"), 4) << err_;
  EXPECT_THAT(out_, HasSubstr("does not offer"));
  EXPECT_THAT(out_, Not(HasSubstr("Nowhere")));
}

TEST_F(ExplainCase, MistakesOnTheCommandLineAreTheUsersInItsOwnName) {
  write(
      "a.json",
      R"({ "world_size": 2, "inputs": { "x": 1.0 }, "steps": [], "loss": "x", "objective": "sum" })");
  EXPECT_EQ(explain("a.json --dtype float31"), 2);
  EXPECT_THAT(err_, StartsWith("distgrad: explain: --dtype"));
  EXPECT_EQ(explain("a.json --json r.json"), 2) << "an option of `run` alone";
  EXPECT_EQ(explain(""), 2);
  EXPECT_EQ(explain("missing.json"), 2);
  EXPECT_EQ(explain("a.json a.json"), 2);
  write(
      "bad.json",
      R"({ "world_size": 2, "inputs": { "x": 1.0 }, "steps": [ { "y": "x +" } ], "loss": "y", "objective": "sum" })");
  EXPECT_EQ(explain("bad.json"), 2);
  EXPECT_EQ(out_, "");
}

}  // namespace
}  // namespace distgrad
