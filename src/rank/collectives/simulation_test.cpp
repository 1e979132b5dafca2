// The oracle's own guard: every collective × op against central finite differences, and the
// adjoints' worked values.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "rank/collectives/random_call.h"

namespace distgrad {
namespace {

using testing::Sample;

double weighted(const Call& call, const std::vector<at::Tensor>& operands,
                const std::vector<at::Tensor>& cotangents) {
  double sum = 0;
  const std::vector<at::Tensor> outputs = collective(call.spec->kind).simulate(call, operands);
  for (std::size_t r = 0; r < outputs.size(); ++r)
    sum += (outputs[r] * cotangents[r]).sum().item<double>();
  return sum;
}

void check_sample(const Sample& sample, int size) {
  SCOPED_TRACE(sample.name + ", " + std::to_string(size) + " ranks");
  const Call call{&sample.spec, size};
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : sample.operands) leaves.push_back(x.clone().requires_grad_(true));
  const std::vector<at::Tensor> outputs = collective(sample.spec.kind).simulate(call, leaves);
  const std::vector<at::Tensor> cotangents = testing::cotangents_for(outputs);
  at::Tensor total = at::zeros({}, at::kDouble);
  for (int r = 0; r < size; ++r) total = total + (outputs[r] * cotangents[r]).sum();
  std::vector<at::Tensor> grads(size);
  if (total.requires_grad()) grads = torch::autograd::grad({total}, leaves, {}, true, false, true);
  // An output that another is computed from would have the other's cotangent, too.
  for (int r = 0; r < size; ++r) {
    if (!outputs[r].requires_grad()) continue;
    const at::Tensor arrived = torch::autograd::grad({total}, {outputs[r]}, {}, true)[0];
    EXPECT_TRUE(arrived.equal(cotangents[r])) << "the gradient of rank " << r << "'s output";
  }
  for (int r = 0; r < size; ++r) {
    const at::Tensor got = grads[r].defined() ? grads[r] : at::zeros_like(sample.operands[r]);
    for (std::int64_t i = 0; i < got.numel(); ++i) {
      // Programs are polynomials of degree `size` in one element at most linear: the central
      // difference is exact but for rounding.
      const double h = 0x1p-10;
      std::vector<at::Tensor> up = sample.operands, down = sample.operands;
      up[r] = up[r].clone();
      down[r] = down[r].clone();
      up[r].view({-1})[i] += h;
      down[r].view({-1})[i] -= h;
      const double slope =
          (weighted(call, up, cotangents) - weighted(call, down, cotangents)) / (2 * h);
      EXPECT_NEAR(got.reshape({-1})[i].item<double>(), slope, 1e-6 * std::max(1.0, std::abs(slope)))
          << "rank " << r << ", element " << i;
    }
  }
}

TEST(Simulation, AgreesWithFiniteDifferences) {
  for (const int size : {1, 2, 3, 4})
    for (const Sample& sample : testing::samples(size, at::kDouble, false)) {
      // Where ranks tie at a minimum or maximum there is no derivative to compare with.
      const bool picks = sample.spec.op == ReduceOp::kMin || sample.spec.op == ReduceOp::kMax;
      bool ties = false;
      for (int a = 0; picks && a < size; ++a)
        for (int b = 0; b < a; ++b)
          ties = ties || sample.operands[a].eq(sample.operands[b]).any().item<bool>();
      if (!ties) check_sample(sample, size);
    }
}

TEST(Records, EachKindHasItsOwnAndSamples) {
  const std::vector<Sample> samples = testing::samples(2, at::kDouble, false);
  for (const CollectiveTraits& kind : kCollectives) {
    EXPECT_EQ(collective(kind.kind).kind, kind.kind) << kind.name << ": records.h";
    EXPECT_TRUE(std::any_of(samples.begin(), samples.end(),
                            [&](const Sample& sample) { return sample.spec.kind == kind.kind; }))
        << kind.name << ": random_call.cpp";
  }
}

at::Tensor vec(std::vector<double> v) { return at::tensor(v, at::kDouble); }

// x by rank, loss y on every rank: the gradients by rank.
std::vector<double> gradients(CollectiveCall spec, const std::vector<double>& x,
                              const std::vector<double>& weights) {
  std::vector<at::Tensor> leaves;
  for (const double v : x) leaves.push_back(vec({v}).requires_grad_(true));
  const Call call{&spec, static_cast<int>(x.size())};
  const auto outputs = collective(spec.kind).simulate(call, leaves);
  at::Tensor loss = at::zeros({1}, at::kDouble);
  for (std::size_t r = 0; r < x.size(); ++r) loss = loss + weights[r] * outputs[r];
  std::vector<double> out;
  for (const at::Tensor& g : torch::autograd::grad({loss}, leaves)) out.push_back(g.item<double>());
  return out;
}

TEST(Simulation, WorkedValues) {
  CollectiveCall spec;
  spec.kind = CollectiveKind::kAllReduce;
  spec.op = ReduceOp::kProduct;
  EXPECT_EQ(gradients(spec, {2, 3}, {1, 1}), (std::vector<double>{6, 4}));
  EXPECT_EQ(gradients(spec, {0, 3, 5}, {1, 1, 1}), (std::vector<double>{45, 0, 0}));
  EXPECT_EQ(gradients(spec, {0, 0, 5}, {1, 1, 1}), (std::vector<double>{0, 0, 0}));
  spec.op = ReduceOp::kMax;
  EXPECT_EQ(gradients(spec, {2, 3}, {1, 1}), (std::vector<double>{0, 2}));
  EXPECT_EQ(gradients(spec, {3, 1, 3}, {1, 1, 1}), (std::vector<double>{1.5, 0, 1.5}));
  spec.op = ReduceOp::kAvg;
  spec.kind = CollectiveKind::kReduce;
  EXPECT_EQ(gradients(spec, {2, 3}, {1, 1}), (std::vector<double>{0.5, 0.5}));
}

TEST(Simulation, ShowsEachRanksShapeWhenTheyDoNotFit) {
  CollectiveCall spec;
  spec.kind = CollectiveKind::kAllReduce;
  try {
    collective(spec.kind).simulate(Call{&spec, 2}, {vec({1, 2}), vec({1, 2, 3})});
    FAIL() << "was accepted";
  } catch (const InvalidCall& e) {
    EXPECT_STREQ(
        e.what(),
        "all_reduce needs operands of one shape on all ranks of the group: rank 0 [2], rank 1 [3]");
  }
}

}  // namespace
}  // namespace distgrad
