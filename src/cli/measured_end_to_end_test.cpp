// Wrong backwards on real ranks, one and several at once: each is measured and named at its step,
// and no right call is accused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/command_test.h"

namespace distgrad {
namespace {

using testing::HasSubstr;
using testing::Not;

class MeasuredBackward : public CommandTest {
 protected:
  void run(const std::string& subject) {
    write("mix.json", R"json({ "world_size": 4, "mesh": { "dp": 2, "tp": 2 },
      "inputs": { "x": { "random": { "shape": [4, 2], "kind": "normal" } },
                  "w": { "random": { "shape": [2], "kind": "normal", "seed": 3 } } },
      "steps": [ { "a": { "all_reduce": "x * w", "group": "tp" } },
                 { "b": { "all_gather": "torch.sin(a)", "dim": 0, "group": "dp" } },
                 { "c": { "reduce_scatter": "b * (rank + 1)" } },
                 { "d": { "broadcast": "c", "root": 1 } },
                 { "e": { "all_reduce": "c.t() * (rank + 1)", "op": "product" } } ],
      "loss": "((rank + 1) * (c * c * d + b.sum() + e.t() * c)).sum()", "objective": "sum" })json");
    EXPECT_EQ(distgrad("run mix.json --full --subject '" + subject + "'"), 1) << out_ << err_;
  }

  // "measured   x̄_r = ... (step a)" or, of one alone, without the step.
  bool has_formula(const std::string& formula) const {
    return out_.find("measured   " + formula) != std::string::npos;
  }
};

TEST_F(MeasuredBackward, HasItsFormula) {
  run("mutant:a=identity");
  EXPECT_THAT(out_, HasSubstr("mismatch: identity-backward in step a (all_reduce)\n"
                              "  measured   x̄_r = ȳ_r\n"
                              "  right      x̄_r = Σ_k ȳ_k\n"));
  EXPECT_THAT(out_, Not(HasSubstr("in step b")));
}

TEST_F(MeasuredBackward, OfSeveralAtOnceEachIsNamed) {
  run("mutant:a=without:2+b=own_slice+c=next_cotangent");
  EXPECT_THAT(out_, HasSubstr("mismatch: wrong-slice in step c (reduce_scatter)"));
  EXPECT_THAT(
      out_,
      HasSubstr(
          "Also: own-slice in step b (all_gather); missing-reduction in step a (all_reduce)"));
  EXPECT_TRUE(has_formula("x̄_r[a] = ȳ_{a+1} (step c)")) << out_;
  EXPECT_TRUE(has_formula("x̄_r = ȳ_r[r] (step b)")) << out_;
  EXPECT_THAT(out_, Not(HasSubstr("step d")));
  EXPECT_THAT(out_, Not(HasSubstr("step e")));
}

TEST_F(MeasuredBackward, OfAnotherCallIsNamedAsThat) {
  run("mutant:b=group:tp");
  EXPECT_THAT(out_, HasSubstr("mismatch: wrong-group in step b (all_gather)"));
  EXPECT_THAT(out_, HasSubstr("instead of the call's own"));
  run("mutant:d=root:0");
  EXPECT_THAT(out_, HasSubstr("mismatch: wrong-slice in step d (broadcast)"));
  EXPECT_TRUE(has_formula("x̄_0 = Σ_k ȳ_k, 0 on the other ranks")) << out_;
}

TEST_F(MeasuredBackward, ThatDependsOnMemoryIsToldFromOneThatIsWrong) {
  run("mutant:e=operand_as_stored");
  EXPECT_THAT(out_, HasSubstr("mismatch: contiguity in step e (all_reduce)"))
      << "its operand is transposed";
  EXPECT_THAT(out_, Not(HasSubstr("measured   ")));
  run("mutant:a=in_bfloat16");
  EXPECT_THAT(out_, HasSubstr("mismatch: precision in step a (all_reduce)"));
}

TEST_F(MeasuredBackward, IsAFieldOfTheReport) {
  run("mutant:a=divided");
  EXPECT_EQ(distgrad("run mix.json --json - --subject mutant:a=divided"), 1);
  EXPECT_THAT(out_, HasSubstr("\"formula\": \"x̄_r = 1/2 Σ_k ȳ_k\""));
  EXPECT_THAT(out_, HasSubstr("\"coefficients\": [[0.5, 0.5], [0.5, 0.5]]"));
}

// What a rule set does by its own convention is not blamed for what the program lacks: here the
// copy that would sum the gradient of x over the ranks.
TEST_F(MeasuredBackward, AForgottenCopyIsNotTheGathersFault) {
  write("column.json", R"json({ "world_size": 3,
    "inputs": { "x": { "value": [1.0, 2.0], "layout": "invariant" },
                "w": { "random": { "shape": [2, 6], "kind": "normal" }, "layout": { "shard": 1 } } },
    "steps": [ { "h": "x @ w" }, { "y": { "all_gather": "h", "dim": 0 } } ],
    "loss": "(y * y).sum()", "objective": "replicated" })json");
  EXPECT_EQ(distgrad("run column.json --subject megatron"), 1) << out_ << err_;
  EXPECT_THAT(out_, HasSubstr("mismatch: missing-reduction\n"));
  EXPECT_THAT(out_, HasSubstr("Each rank holds only its own share of the gradient of x"));
  EXPECT_THAT(out_, Not(HasSubstr("own-slice")));
}

}  // namespace
}  // namespace distgrad
