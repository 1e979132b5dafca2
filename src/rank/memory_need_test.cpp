// What is counted of a program's memory, and what is not.
#include "rank/memory_need.h"

#include <gtest/gtest.h>

namespace distgrad {
namespace {

constexpr std::uint64_t kKiB = 1024;

Expression text(const std::string& t) { return Expression{t, "/text"}; }

struct Steps {
  Program p;

  explicit Steps(int world_size) {
    p.world_size = world_size;
    p.loss = text("0 * x.sum()");
    Input x;  // a KiB on each rank
    x.name = "x";
    x.pointer = "/inputs/x";
    x.value = RandomSpec{{std::int64_t{128}}};
    x.layout = {{"", {}}};
    p.inputs.push_back(x);
  }
  Steps& add(const std::string& name, const std::string& t) {
    p.steps.push_back({name, "/steps/" + name, text(t)});
    return *this;
  }
  Steps& gather(const std::string& name, const std::string& operand) {
    CollectiveCall call;
    call.kind = CollectiveKind::kAllGather;
    call.operand = text(operand);
    p.steps.push_back({name, "/steps/" + name, call});
    return *this;
  }
  Steps& loss(const std::string& t) {
    p.loss = text(t);
    return *this;
  }
};

// The step and the message; nothing where all fits.
std::pair<std::string, std::string> refusal(const Steps& steps, std::uint64_t kib) {
  try {
    require_memory(CompiledProgram(steps.p, DType::kFloat64), kib * kKiB);
    return {};
  } catch (const InvalidAt& e) {
    return {e.pointer, e.what()};
  }
}

TEST(MemoryNeed, NamesTheStepAndTheSizes) {
  Steps steps(3);
  for (int i = 0; i < 100; ++i)
    steps.add("z" + std::to_string(i), "torch.ones(1024) * x.sum() + " + std::to_string(i));
  std::string sum = "z0.sum()";
  for (int i = 1; i < 100; ++i) sum += " + z" + std::to_string(i) + ".sum()";
  steps.loss(sum);
  // 3 KiB of x, 24 KiB a step
  const auto [at, message] = refusal(steps, 60);
  EXPECT_EQ(at, "/steps/z2");
  EXPECT_EQ(
      message,
      "with z2 the values of all ranks take 75 KiB, and a simulator may have 60 KiB "
      "(--max-memory); the program takes 2.347 MiB: 100 of 24 KiB each (z0 to z99), x of 3 KiB");
  EXPECT_EQ(refusal(steps, 2403).first, "");
  EXPECT_EQ(refusal(steps, 2402).first, "/steps/z99");
}

TEST(MemoryNeed, CountsInputsBeforeSteps) {
  EXPECT_EQ(refusal(Steps(4), 3).first, "/inputs/x");
  EXPECT_EQ(refusal(Steps(4), 4).first, "");
  EXPECT_EQ(declared_bytes(Steps(4).p, Steps(4).p.inputs[0]), 4096);
}

TEST(MemoryNeed, ValuesThatNobodyWantsAnyMoreAreNotHeld) {
  Steps chain(2);
  chain.add("a", "torch.ones(1024) * x[0]").add("b", "a * 2").add("c", "b * 3").loss("c.sum()");
  EXPECT_EQ(refusal(chain, 34).first, "");  // x and two of them
  EXPECT_EQ(refusal(chain, 33).first, "/steps/b");
  Steps gathers(2);  // of which the report has the outputs
  gathers.gather("a", "torch.ones(1024) * x[0]").gather("b", "a[0]").loss("b.sum()");
  EXPECT_EQ(refusal(gathers, 33).first, "/steps/b");
}

TEST(MemoryNeed, ViewsTakeNothing) {
  Steps views(2);
  views.add("a", "x.unsqueeze(0).expand(1000, 128)").add("b", "x[1:]").loss("a.sum() + b.sum()");
  EXPECT_EQ(refusal(views, 2).first, "");
  views.add("c", "a * 1").loss("a.sum() + b.sum() + c.sum()");
  EXPECT_EQ(refusal(views, 2).first, "/steps/c");
}

TEST(MemoryNeed, CountsUpToWhatNeedsNumbers) {
  Steps steps(2);
  steps.add("a", "torch.ones(1024) * x[0]").add("n", "x.sum().item() * torch.ones(3)");
  steps.add("b", "a * 2").loss("a.sum() + n.sum() + b.sum()");
  EXPECT_EQ(refusal(steps, 18).first, "");
  const auto [at, message] = refusal(steps, 17);
  EXPECT_EQ(at, "/steps/a");
  EXPECT_NE(message.find("takes at least 18 KiB"), std::string::npos) << message;
}

TEST(MemoryNeed, WithoutALimitNothingIsCounted) { EXPECT_EQ(refusal(Steps(4), 0).first, ""); }

}  // namespace
}  // namespace distgrad
