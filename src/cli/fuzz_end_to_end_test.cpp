// distgrad fuzz as a user runs it: what it finds, writes and says, and the exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>

#include "cli/command_test.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Fuzz : public CommandTest {
 protected:
  std::map<std::string, std::string> files(const std::string& folder) const {
    std::map<std::string, std::string> all;
    if (!fs::exists(folder_ / folder)) return all;
    for (const auto& entry : fs::directory_iterator(folder_ / folder))
      all[entry.path().filename()] = read(folder + "/" + entry.path().filename().string());
    return all;
  }
};

TEST_F(Fuzz, ReferenceMatches) {
  EXPECT_EQ(distgrad("fuzz --seed 1 --count 100"), 0) << out_ << err_;
  EXPECT_THAT(out_, StartsWith("seed 1\nreference: 100 programs; "));
  EXPECT_THAT(out_, HasSubstr("\nNothing found. Again: distgrad fuzz --seed 1 --count 100\n"));
  EXPECT_FALSE(fs::exists(folder_ / "fuzz-failures"));
}

TEST_F(Fuzz, AWrongSubjectIsFoundShrunkNamedAndWrittenToRunAgain) {
  EXPECT_EQ(distgrad("fuzz --subject torch_nn --collective all_reduce --objective sum --world-size "
                     "2 --seed 1 --count 10"),
            1)
      << out_ << err_;
  const auto found = files("fuzz-failures");
  ASSERT_TRUE(found.contains("same-op-backward-all_reduce-max.json")) << out_;
  const std::string& text = found.at("same-op-backward-all_reduce-max.json");
  EXPECT_THAT(text, StartsWith("{\n  \"note\": \"found by distgrad fuzz "));
  EXPECT_THAT(text, HasSubstr("\"subjects\": { \"torch_nn\": \"match\" }"));
  EXPECT_LT(text.size(), 600u) << "not shrunk:\n" << text;
  EXPECT_THAT(out_, HasSubstr("FAIL  same-op-backward  all_reduce max   program "));
  EXPECT_THAT(out_, HasSubstr("Again: distgrad fuzz --subject torch_nn --world-size 2 --collective "
                              "all_reduce --objective sum --seed 1 --count 10\n"));
  // Each file shows what its name says.
  EXPECT_EQ(distgrad("run fuzz-failures/same-op-backward-all_reduce-max.json"), 1);
  EXPECT_THAT(out_, HasSubstr("mismatch: same-op-backward in step "));
}

TEST_F(Fuzz, WhatASubjectDoesNotOfferIsNotDrawn) {
  EXPECT_EQ(
      distgrad("fuzz --subject simclr,vissl --objective sum --world-size 2,3 --seed 2 --count 8"),
      1)
      << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("FAIL  simclr  own-slice  all_gather   program "));
  EXPECT_THAT(out_, Not(HasSubstr("FAIL  vissl")));
  EXPECT_THAT(out_, Not(HasSubstr("skipped")));
  EXPECT_TRUE(fs::exists(folder_ / "fuzz-failures/simclr/own-slice-all_gather.json"));
}

TEST_F(Fuzz, TheSameSeedFindsTheSameAndOverwritesNothing) {
  const std::string again =
      "fuzz --subject simclr --objective sum --world-size 2 --seed 4 --count 2 --out ";
  EXPECT_EQ(distgrad(again + "a"), 1);
  EXPECT_EQ(distgrad(again + "b"), 1);
  EXPECT_EQ(files("a"), files("b"));
  EXPECT_EQ(distgrad(again + "a"), 1);
  EXPECT_EQ(files("a").size(), 2 * files("b").size());
}

// A module that all_reduces; what its backward does is to follow.
const std::string kAllReduce = R"-(
import os
import time
import torch
import torch.distributed as dist


class AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
)-";

// Wrong in a way of its own each, but not for the 4x4 tensors that are asked about first.
const std::string kMutants = kAllReduce + R"-(
        return g


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone(memory_format=torch.contiguous_format)
        dist.broadcast(y, 0)
        return y

    @staticmethod
    def backward(ctx, g):
        if g.dim() == 1:
            raise RuntimeError("no vectors, please")
        g = g.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(g)
        return g if dist.get_rank() == 0 else torch.zeros_like(g)


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone(memory_format=torch.contiguous_format)
        dist.reduce(y, 0)
        return y if dist.get_rank() == 0 else torch.zeros_like(y)

    @staticmethod
    def backward(ctx, g):
        if g.dim() == 1 and dist.get_rank() == 1:
            os._exit(7)
        g = g.clone(memory_format=torch.contiguous_format)
        dist.broadcast(g, 0)
        return g


def all_reduce(x):
    return AllReduce.apply(x)


def broadcast(x):
    return Broadcast.apply(x)


def reduce(x):
    return Reduce.apply(x)


def all_gather(x):  # no backward, which is known before the first program
    raise NotImplementedError("all_gather is for another day")
)-";

const std::string kHangs = kAllReduce + R"-(
        while g.shape == (4, 4) and dist.get_rank() == 1:
            time.sleep(0.1)
        g = g.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(g)
        return g


def all_reduce(x):
    return AllReduce.apply(x)
)-";

TEST_F(Fuzz, FailuresOfEveryKindAreFoundOnceAndRunAgainAsWritten) {
  write("mutants.py", kMutants);
  EXPECT_EQ(
      distgrad("fuzz --subject python:mutants.py --collective "
               "all_reduce,broadcast,reduce,all_gather --objective sum --world-size 2 --dtype "
               "float64 --seed 1 --count 40"),
      3)
      << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("\nnot drawn, as python:mutants.py raises: all_gather: "
                              "NotImplementedError: all_gather is for another day\n"));
  const struct {
    const char *file, *shows;
    int exit_code;
  } kinds[] = {{"identity-backward-all_reduce-sum.json", "mismatch: identity-backward in step", 1},
               {"exception-broadcast.json", "error: exception on rank", 3},
               {"crash-reduce-sum.json", "error: crash on rank 1 in the backward of step", 3}};
  const std::string printed = out_;
  const auto found = files("fuzz-failures");
  EXPECT_EQ(found.size(), std::size(kinds)) << printed;
  for (const auto& [file, shows, code] : kinds) {
    ASSERT_TRUE(found.contains(file)) << printed;
    EXPECT_LT(found.at(file).size(), 400u) << "not shrunk:\n" << found.at(file);
    EXPECT_EQ(distgrad(std::string("run --allow-code fuzz-failures/") + file), code)
        << out_ << err_;
    EXPECT_THAT(out_, HasSubstr(shows));
  }
}

TEST_F(Fuzz, ATimeInWhichNothingRanIsNoneInWhichNothingWasFound) {
  write("mutants.py", kMutants);
  EXPECT_EQ(distgrad("fuzz --subject python:mutants.py --collective all_reduce --seconds 0.01"), 4)
      << out_ << err_;
  EXPECT_THAT(
      out_, AllOf(HasSubstr("No program ran: the time was over"), Not(HasSubstr("Nothing found"))));
}

TEST_F(Fuzz, WhatHangsWheneverItIsAskedIsTold) {
  write("hangs.py", kHangs);
  EXPECT_EQ(distgrad("fuzz --subject all_reduce=python:hangs.py:all_reduce --collective all_reduce "
                     "--objective sum --world-size 2 --seed 1 --count 1 --timeout 1"),
            3)
      << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("FAIL  hang  all_reduce sum   asked before any program"));
  EXPECT_THAT(out_, HasSubstr(" --seed 1 --count 1\n"));
  const auto found = files("fuzz-failures");
  ASSERT_TRUE(found.contains("hang-all_reduce-sum.json")) << out_;
  EXPECT_THAT(found.at("hang-all_reduce-sum.json"), HasSubstr("\"timeout_s\": 1"));
}

TEST_F(Fuzz, TheTruthIsConsistentWithItself) {
  EXPECT_EQ(distgrad("fuzz --simulate --seed 1 --count 300"), 0) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("simulated: 300 programs; 300 consistent in "));
}

TEST_F(Fuzz, AnInterruptLosesNothingThatWasFound) {
  // By a signal to the shell that becomes the command, as soon as something was found.
  EXPECT_EQ(
      distgrad("fuzz --subject simclr --objective sum --world-size 2 --seed 4 --seconds 600",
               "{ (for i in $(seq 600); do ls fuzz-failures/*.json && break; sleep 0.1; done; "
               "kill -INT $$) >/dev/null 2>&1 & } && exec"),
      130)
      << out_ << err_;
  EXPECT_FALSE(files("fuzz-failures").empty());
  EXPECT_THAT(out_, HasSubstr("FAIL  own-slice  all_gather"));
  EXPECT_THAT(out_, HasSubstr("Again: distgrad fuzz --subject simclr "));
  EXPECT_EQ(err_, "distgrad: interrupted\n");
}

TEST_F(Fuzz, WrongOptionsAreTold) {
  EXPECT_EQ(distgrad("fuzz --seed x"), 2);
  EXPECT_EQ(err_, "distgrad: fuzz: --seed is an integer from 0 to 2^64 - 1, not \"x\"\n");
  EXPECT_EQ(distgrad("fuzz --collective all_reduc"), 2);
  EXPECT_EQ(err_,
            "distgrad: fuzz: --collective: unknown \"all_reduc\"; did you mean \"all_reduce\"?\n");
  EXPECT_EQ(distgrad("fuzz --subject simclr --collective all_reduce"), 2);
  EXPECT_EQ(err_, "distgrad: fuzz: simclr offers none of the collectives that are asked for\n");
  EXPECT_EQ(distgrad("fuzz --subject simcl"), 2);
  EXPECT_THAT(err_, HasSubstr("did you mean \"simclr\"?"));
  EXPECT_EQ(distgrad("fuzz --count 0"), 2);
  EXPECT_EQ(distgrad("fuzz --simulate --subject simclr"), 2);
}

}  // namespace
}  // namespace distgrad
