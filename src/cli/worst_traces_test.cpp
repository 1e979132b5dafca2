#include "cli/worst_traces.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace distgrad {
namespace {

// A run of cases that are concluded one after the other; counts the traces that are worked out.
class WorstWaysTest : public testing::Test {
 protected:
  void conclude(const std::string& id, Verdict verdict, bool as_expected, double error,
                std::int64_t elements = 2) {
    CaseResult result;
    result.which.id = id;
    result.verdict = verdict;
    result.as_expected = as_expected;
    result.broken = verdict == Verdict::kError && !as_expected;
    result.gradients.emplace_back();
    result.gradients[0].equal = verdict != Verdict::kMismatch;
    result.gradients[0].max_rel_error = error;
    Simulation simulation;
    simulation.steps.push_back({"y", {Array({elements}, std::vector<double>(elements))}, {}});
    const SimulateRequest asked;
    const DistributedRun run;
    traces_.consider({result.which, asked, simulation, &run, nullptr, machine_, result});
  }

  bool has(const std::string& id) const { return traces_.by_case().contains(id); }

  // Nothing is asked of it.
  class NoMachine : public Machine {
    Simulation simulate(const SimulateRequest&) override { return {}; }
    std::optional<DistributedRun> observe() override { return std::nullopt; }
    std::optional<DistributedRun> run(const Program&, const std::vector<double>&) override {
      return std::nullopt;
    }
    std::optional<DistributedRun> drive(const Program&, const Drive&) override {
      return std::nullopt;
    }
  };

  NoMachine machine_;
  int worked_out_ = 0;
  WorstTraces traces_{[this](const Conclusion&) {
    ++worked_out_;
    ValueTrace trace;
    trace.rows.emplace_back();
    return trace;
  }};
};

TEST_F(WorstWaysTest, OfManyMismatchesTheLargestErrorsAreKept) {
  for (int i = 0; i < 300; ++i)
    conclude(fmt::format("case {}", i), Verdict::kMismatch, false, i % 2 ? i : 1.0 / (i + 1));
  EXPECT_EQ(traces_.by_case().size(), 200u);
  EXPECT_TRUE(has("case 299"));
  EXPECT_TRUE(has("case 1"));  // all odd ones are among the largest 200
  EXPECT_TRUE(has("case 0"));  // the largest of the small ones
  EXPECT_FALSE(has("case 298"));
}

TEST_F(WorstWaysTest, OfEqualErrorsTheFirstAreKept) {
  for (int i = 0; i < 250; ++i) conclude(fmt::format("case {}", i), Verdict::kMismatch, false, 0.5);
  EXPECT_TRUE(has("case 199"));
  EXPECT_FALSE(has("case 200"));
  EXPECT_EQ(worked_out_, 200) << "a trace that is not kept costs simulations";
}

TEST_F(WorstWaysTest, CasesThatGetWorseAndWorseAreNotAllWorkedOut) {
  for (int i = 0; i < 3000; ++i) conclude(fmt::format("case {}", i), Verdict::kMismatch, false, i);
  EXPECT_EQ(worked_out_, 1000);
  EXPECT_EQ(traces_.by_case().size(), 200u);
}

TEST_F(WorstWaysTest, ErrorsAndExpectedMismatchesTakeNoMismatchsPlace) {
  for (int i = 0; i < 100; ++i) {
    conclude(fmt::format("broken {}", i), Verdict::kError, false, 0);
    conclude(fmt::format("expected {}", i), Verdict::kMismatch, true, 1e9);
    conclude(fmt::format("wrong {}", i), Verdict::kMismatch, false, 0.5);
    conclude(fmt::format("right {}", i), Verdict::kMatch, true, 0);
  }
  EXPECT_EQ(traces_.by_case().size(), 140u);
  EXPECT_TRUE(has("wrong 99"));
  EXPECT_TRUE(has("broken 19") && has("expected 19"));
  EXPECT_FALSE(has("broken 20") || has("expected 20"));
  EXPECT_FALSE(has("right 0"));
}

TEST_F(WorstWaysTest, LargeProgramsAndWhatHasNoWayAreLeftOut) {
  conclude("large", Verdict::kMismatch, false, 1, (std::int64_t{1} << 20) + 1);
  EXPECT_EQ(worked_out_, 0);
  conclude("largest", Verdict::kMismatch, false, 1, std::int64_t{1} << 20);
  EXPECT_TRUE(has("largest"));
  EXPECT_FALSE(has("large"));
}

TEST_F(WorstWaysTest, ACaseThatIsRunTwiceTakesOnePlace) {
  conclude("case", Verdict::kMismatch, false, 1);
  conclude("case", Verdict::kMismatch, false, 1);
  for (int i = 0; i < 199; ++i) conclude(fmt::format("case {}", i), Verdict::kMismatch, false, 0.5);
  EXPECT_EQ(traces_.by_case().size(), 200u);
}

}  // namespace
}  // namespace distgrad
