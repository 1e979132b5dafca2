#include "rank/call_check.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "fuzz/generator.h"
#include "model/objective.h"
#include "scenario/cases.h"
#include "scenario/parse.h"

namespace distgrad {
namespace {

SimulateRequest drawn(std::uint64_t index) {
  const std::string text = fuzz::draw_program(fuzz::default_choices(), 3, index).dump();
  const Scenario scenario = parse_scenario(text, "program");
  SimulateRequest request;
  request.program = program_for(scenario, scenario.world_sizes[0], scenario.dtypes[0]);
  request.weights = {truth_weights(request.program, scenario.objective)};
  request.with_bounds = false;
  return request;
}

bool is_finite(const at::Tensor& x) {
  return x.numel() > 0 && x.detach().isfinite().all().item<bool>();
}

// Half as large again, one of an element that is 0.
at::Tensor spoilt(const at::Tensor& x) {
  return at::where(x == 0, at::ones_like(x), x * 1.5).detach();
}

void expect_equal(const std::vector<Gradient>& a, const std::vector<Gradient>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t p = 0; p < a[i].parts.size(); ++p) {
      const auto x = a[i].parts[p]->values(), y = b[i].parts[p]->values();
      ASSERT_EQ(x.size(), y.size());
      for (std::size_t e = 0; e < x.size(); ++e)
        EXPECT_TRUE(std::abs(x[e] - y[e]) <= 1e-12 * std::abs(x[e]) ||
                    (x[e] != x[e] && y[e] != y[e]));
    }
}

// Of random programs every call holds, and none that is changed in one place of one rank.
TEST(CallCheck, HoldsUntilSomethingIsWrong) {
  std::set<CollectiveKind> outputs, cotangents;  // kinds of which some were tried
  for (std::uint64_t index = 0; index < 300; ++index) {
    SCOPED_TRACE("program " + std::to_string(index));
    const SimulateRequest request = drawn(index);
    std::vector<SimulatedCall> calls;
    const Simulation truth = simulate_with_calls(request, calls);
    ASSERT_FALSE(truth.invalid);
    for (SimulatedCall& call : calls) {
      EXPECT_EQ(difference_from_arithmetic(call), "");
      const CollectiveKind kind = call.step->collective()->kind;
      for (std::size_t r = 0; r < call.outputs.size(); ++r) {
        if (is_finite(call.outputs[r])) {
          SimulatedCall wrong = call;
          wrong.outputs[r] = spoilt(call.outputs[r]);
          EXPECT_NE(difference_from_arithmetic(wrong), "") << call.step->name;
          outputs.insert(kind);
        }
        const at::Tensor& cotangent = call.operand_cotangents[r];
        if (cotangent.defined() && is_finite(cotangent)) {
          SimulatedCall wrong = call;
          wrong.operand_cotangents[r] = spoilt(cotangent);
          EXPECT_NE(difference_from_arithmetic(wrong), "") << call.step->name;
          cotangents.insert(kind);
        }
      }
    }
  }
  EXPECT_EQ(outputs.size(), kCollectives.size());
  EXPECT_EQ(cotangents.size(), kCollectives.size());
}

TEST(CallCheck, ReportedCallsChangeNoGradient) {
  for (std::uint64_t index = 0; index < 100; ++index) {
    const SimulateRequest request = drawn(index);
    std::vector<SimulatedCall> calls;
    expect_equal(simulate_with_calls(request, calls).gradients[0], simulate(request).gradients[0]);
  }
}

}  // namespace
}  // namespace distgrad
