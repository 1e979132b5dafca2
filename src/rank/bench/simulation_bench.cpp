// Compares simulated programs per second with a bare libtorch loop that runs the same graph, for
// pytorch#58005's program.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include "rank/simulator.h"

namespace distgrad {
namespace {

SimulateRequest debate(int ranks) {
  SimulateRequest request;
  Program& p = request.program;
  p.world_size = ranks;
  Input x;
  x.name = "x";
  x.value = Array::scalar(1);
  x.layout = {{"", Layout{}}};
  p.inputs = {x};
  CollectiveCall all_reduce;
  all_reduce.kind = CollectiveKind::kAllReduce;
  all_reduce.operand = {"xx", "/steps/1/y/all_reduce"};
  p.steps = {Step{"xx", "/steps/0", Expression{"(rank + 2) * x", "/steps/0/xx"}},
             Step{"y", "/steps/1", all_reduce}};
  p.loss = {"y * y", "/loss"};
  request.weights = {std::vector<double>(ranks, 1.0)};
  return request;
}

void BM_Simulate(benchmark::State& state) {
  SimulateRequest request = debate(static_cast<int>(state.range(0)));
  request.with_bounds = state.range(1) != 0;
  for (auto _ : state) benchmark::DoNotOptimize(simulate(request));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Simulate)
    ->ArgNames({"ranks", "bounds"})
    ->Args({4, 0})
    ->Args({4, 1})
    ->Args({512, 0})
    ->Args({512, 1});

void BM_BareLibtorch(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  for (auto _ : state) {
    std::vector<at::Tensor> leaves, scaled, losses;
    for (int r = 0; r < ranks; ++r) {
      leaves.push_back(at::ones({}, at::kDouble).requires_grad_(true));
      scaled.push_back(leaves.back() * (r + 2));
    }
    const std::vector<at::Tensor> y =
        at::stack(scaled).sum(0).unsqueeze(0).expand({static_cast<std::int64_t>(ranks)}).unbind(0);
    for (const at::Tensor& v : y) losses.push_back(v * v);
    benchmark::DoNotOptimize(torch::autograd::grad({at::stack(losses).sum()}, leaves));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_BareLibtorch)->ArgName("ranks")->Arg(4)->Arg(512);

// Simulates the right answers for one call of four ranks to 64 cotangents each; an item is a
// cotangent.
void BM_SimulateDriven(benchmark::State& state) {
  constexpr int kRanks = 4, kCotangents = 64;
  SimulateRequest request;
  Program& p = request.program;
  p.world_size = kRanks;
  CollectiveCall call;
  call.kind = static_cast<CollectiveKind>(state.range(0));
  call.op = static_cast<ReduceOp>(state.range(1));
  call.operand.text = "x";
  p.steps = {Step{"y", "", call}};
  const Shape joined = call.kind == CollectiveKind::kAllGather ? Shape{4, 2, 3} : Shape{2, 3};
  for (const auto& [name, shape] : {std::pair<std::string, Shape>{"x", {2, 3}}, {"g", joined}}) {
    Input input;
    input.name = name;
    input.requires_grad = name == "x";
    input.layout = {{"", Layout{}}};
    std::vector<Array> by_rank;
    for (int r = 0; r < kRanks; ++r) {
      Shape own = shape;
      if (name == "g") own.insert(own.begin(), kCotangents);
      std::vector<double> values;
      for (std::int64_t i = 0; i < element_count(own); ++i)
        values.push_back(static_cast<double>((i * 7 + r * 3) % 11) - 5);
      by_rank.emplace_back(own, std::move(values));
    }
    input.value = std::move(by_rank);
    p.inputs.push_back(std::move(input));
  }
  request.drive = Drive{"g"};
  request.with_bounds = state.range(2) != 0;
  if (const Simulation s = simulate(request); s.invalid)
    return state.SkipWithError(s.invalid->message.c_str());
  for (auto _ : state) benchmark::DoNotOptimize(simulate(request));
  state.SetItemsProcessed(state.iterations() * kCotangents);
}
void with_and_without_bounds(benchmark::internal::Benchmark* b) {
  for (const auto& [kind, op] : {std::pair{CollectiveKind::kAllReduce, ReduceOp::kSum},
                                 {CollectiveKind::kAllReduce, ReduceOp::kProduct},
                                 {CollectiveKind::kAllReduce, ReduceOp::kMax},
                                 {CollectiveKind::kAllGather, ReduceOp::kSum}})
    for (const int bounds : {0, 1}) b->Args({static_cast<int>(kind), static_cast<int>(op), bounds});
}
BENCHMARK(BM_SimulateDriven)->ArgNames({"kind", "op", "bounds"})->Apply(with_and_without_bounds);

}  // namespace
}  // namespace distgrad

int main(int argc, char** argv) {
  at::set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
