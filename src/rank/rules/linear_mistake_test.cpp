// Mutants without a name: linear indeed, none of the rules, different by seed, and what their seed
// says.
#include "rank/rules/linear_mistake.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "model/libraries.h"
#include "rank/collectives/random_call.h"

namespace distgrad {
namespace {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Call&, const JointValues&)>;

at::Tensor joined(const Tensors& by_rank) {
  Tensors flat;
  for (const at::Tensor& x : by_rank) flat.push_back(x.reshape({-1}).to(at::kDouble));
  return at::cat(flat);
}

JointValues values_of(const Call& call, const Tensors& operands) {
  JointValues v;
  v.operands = operands;
  for (const at::Tensor& y : collective(call.spec->kind).simulate(call, operands))
    v.outputs.push_back(y.clone());
  v.cotangents = testing::cotangents_for(v.outputs);
  return v;
}

// Columns: elements of all ranks' cotangents; rows: of all ranks' operands.
at::Tensor matrix_of(const Function& backward, const Call& call, JointValues v) {
  Tensors columns;
  for (at::Tensor& g : v.cotangents) g = at::zeros_like(g, at::MemoryFormat::Contiguous);
  for (const at::Tensor& g : v.cotangents)
    for (std::int64_t e = 0; e < g.numel(); ++e) {
      g.view({-1})[e] = 1;
      columns.push_back(joined(backward(call, v)));
      g.view({-1})[e] = 0;
    }
  return at::stack(columns, 1);
}

Function mistake(std::uint64_t seed) {
  return [seed](const Call& call, const JointValues& v) { return linear_mistake(seed, call, v); };
}

// Those with elements; of the ops one that is linear, one that is not, and one that picks.
std::vector<testing::Sample> samples(int size) {
  std::vector<testing::Sample> all;
  for (testing::Sample& s : testing::samples(size, at::kDouble, false)) {
    const auto is = [&](const char* word) { return s.name.find(word) != s.name.npos; };
    if (!is("empty") && !is("nothing") && !is("avg") && !is("premul_sum") && !is("min"))
      all.push_back(std::move(s));
  }
  return all;
}

TEST(LinearMistake, IsLinear) {
  for (const testing::Sample& s : samples(3))
    for (std::uint64_t seed = 0; seed < kLinearForms; ++seed) {
      SCOPED_TRACE(s.name + ", " + std::to_string(seed));
      const Call call{&s.spec, 3};
      const JointValues v = values_of(call, s.operands);
      const at::Tensor m = matrix_of(mistake(seed), call, v);
      EXPECT_TRUE(at::allclose(m.mv(joined(v.cotangents)), joined(linear_mistake(seed, call, v)),
                               1e-12, 1e-12));
    }
}

struct NamedMatrix {
  std::string_view rule;
  at::Tensor matrix;
};

std::vector<NamedMatrix> matrices_of_rules(const Call& call, const JointValues& v) {
  std::vector<NamedMatrix> all;
  for (const BackwardRuleRow& row : backward_rules()) {
    const Rule* rule = rule_named(row.name);
    if (!rule->applies(*call.spec) || row.name == "raises" || row.name == "none") continue;
    try {
      all.push_back({row.name, matrix_of(rule->evaluate, call, v)});
    } catch (const c10::Error&) {  // another rank's slice has another shape
    }
  }
  return all;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && at::allclose(a, b, 1e-9, 1e-9);
}

TEST(LinearMistake, HasNoName) {
  for (const int size : {2, 3})
    for (const testing::Sample& s : samples(size)) {
      const Call call{&s.spec, size};
      const JointValues v = values_of(call, s.operands);
      const std::vector<NamedMatrix> rules = matrices_of_rules(call, v);
      const at::Tensor& right = rules[0].matrix;
      ASSERT_EQ(rules[0].rule, "adjoint");
      if (at::count_nonzero(right).item<std::int64_t>() < 2)
        continue;  // any number is the adjoint, scaled
      for (std::uint64_t seed = 0; seed < kLinearForms; ++seed) {
        SCOPED_TRACE(s.name + ", " + std::to_string(size) + " ranks, seed " + std::to_string(seed));
        const at::Tensor m = matrix_of(mistake(seed), call, v);
        const at::Tensor scale = (m * right).sum() / (right * right).sum();
        EXPECT_FALSE(same(m, right * scale)) << "scaled by " << scale.item<double>();
        for (const NamedMatrix& rule : rules) EXPECT_FALSE(same(m, rule.matrix)) << rule.rule;
      }
    }
}

TEST(LinearMistake, DiffersBySeed) {
  CollectiveCall spec;
  const Call call{&spec, 4};
  const JointValues v = values_of(call, Tensors(4, at::ones({2}, at::kDouble)));
  std::vector<at::Tensor> seen;
  for (std::uint64_t seed = 0; seed < 2 * kLinearForms; ++seed) {
    seen.push_back(matrix_of(mistake(seed), call, v));
    EXPECT_TRUE(at::equal(seen.back(), matrix_of(mistake(seed), call, v))) << "the same each time";
    for (std::uint64_t other = 0; other < seed; ++other)
      if (seed % kLinearForms != other % kLinearForms || seed % kLinearForms == 0) {
        EXPECT_FALSE(at::equal(seen[other], seen[seed])) << other << ", " << seed;
      }
  }
}

TEST(LinearMistake, IsWhatTheFormSays) {
  CollectiveCall spec;  // all_reduce sum
  const Call call{&spec, 3};
  const at::Tensor one = at::ones({}, at::kDouble);
  const JointValues v = values_of(call, {one, one, one});
  const auto matrix = [&](std::uint64_t seed) { return matrix_of(mistake(seed), call, v); };
  const auto rows = [](std::vector<double> numbers) {
    return at::tensor(numbers, at::kDouble).reshape({3, 3});
  };
  EXPECT_TRUE(at::equal(matrix(2), rows({2, 1, 1, 1, 2, 1, 1, 1, 2})));
  EXPECT_TRUE(at::equal(matrix(3), rows({1, 0, 0, 1, 1, 0, 1, 1, 1})));
  EXPECT_EQ((matrix(1) == -1).sum().item<std::int64_t>(), 3) << "one rank's sign";
  EXPECT_EQ(matrix(4).sum().item<double>(), 6) << "each rank misses one";
  EXPECT_EQ(matrix(5).sum().item<double>(), 6) << "each rank has its own and another's";
  EXPECT_TRUE(at::equal(matrix(5).diagonal(), at::ones({3}, at::kDouble)));
}

}  // namespace
}  // namespace distgrad
