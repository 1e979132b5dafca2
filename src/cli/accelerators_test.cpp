#include "cli/accelerators.h"

#include <gtest/gtest.h>

namespace distgrad {
namespace {

Case on(const char* backend, int world_size, const char* subject = "reference") {
  Case which;
  which.backend = backend;
  which.device = "cuda";
  which.world_size = world_size;
  which.subject = subject;
  return which;
}

Probe gpus(std::size_t count) {
  Probe probe;
  probe.devices.assign(count, "NVIDIA H200");
  return probe;
}

TEST(Accelerators, NcclWantsAGpuForEachRank) {
  Accelerators two(false, gpus(2));
  EXPECT_EQ(two.why_unavailable(on("nccl", 2)), "");
  EXPECT_EQ(two.why_unavailable(on("nccl", 3)),
            "3 ranks need as many GPUs, and there are 2; --share-gpu lets ranks share one");
  EXPECT_EQ(Accelerators(false, gpus(1)).why_unavailable(on("nccl", 2)),
            "2 ranks need as many GPUs, and there is 1; --share-gpu lets ranks share one");
  EXPECT_EQ(Accelerators(true, gpus(1)).why_unavailable(on("nccl", 8)), "");
}

TEST(Accelerators, GlooSharesWithoutBeingTold) {
  EXPECT_EQ(Accelerators(false, gpus(1)).why_unavailable(on("gloo", 8)), "");
}

TEST(Accelerators, GlooSendsNothingFromAGpu) {
  Scenario scenario;
  CollectiveCall call;
  call.kind = CollectiveKind::kSendRecv;
  scenario.steps.emplace_back();
  scenario.steps.back().what = call;
  const auto why = [&](const char* backend, const char* subject) {
    Case which = on(backend, 1, subject);
    which.scenario = &scenario;
    return Accelerators(false, gpus(1)).why_unavailable(which);
  };
  EXPECT_EQ(why("gloo", "in_place"), "c10d's gloo can neither send nor receive tensors on a GPU");
  EXPECT_EQ(why("gloo", "reference"), "");  // of all_to_all
  EXPECT_EQ(why("nccl", "in_place"), "");
}

TEST(Accelerators, APythonInterpreterBringsItsOwnNccl) {
  Probe probe = gpus(2);
  probe.nccl_unavailable = "this build has no nccl";
  Accelerators some(false, probe);
  EXPECT_EQ(some.why_unavailable(on("nccl", 2)), "this build has no nccl");
  EXPECT_EQ(some.why_unavailable(on("nccl", 2, "python:m:f")), "");
  EXPECT_EQ(some.why_unavailable(on("gloo", 2)), "");
  probe.cuda_unavailable = "no NVIDIA driver";
  EXPECT_EQ(Accelerators(false, probe).why_unavailable(on("nccl", 2, "python:m:f")),
            "no NVIDIA driver");
  EXPECT_EQ(Accelerators(false, probe).why_unavailable(on("gloo", 2)), "no NVIDIA driver");
}

TEST(Accelerators, WhatStandsInForNcclNeedsNoGpu) {
  Probe probe;
  probe.cuda_unavailable = "no NVIDIA driver";
  probe.nccl_needs_cuda = false;
  EXPECT_EQ(Accelerators(false, probe).why_unavailable(on("nccl", 4)), "");
}

TEST(Accelerators, AProgramThatCannotAnswerIsTheReason) {
  const Probe probe = probe_accelerators("/nowhere/distgrad-rank", false);
  EXPECT_NE(probe.cuda_unavailable.find("looking for GPUs failed"), std::string::npos);
  EXPECT_EQ(probe.cuda_unavailable, probe.nccl_unavailable);
}

}  // namespace
}  // namespace distgrad
