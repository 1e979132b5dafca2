// Runs programs of one call on real ranks over Gloo, for tests.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "pool/worker_pool.h"
#include "rank/collectives/random_call.h"
#include "rank/input_values.h"
#include "rank/simulator.h"

namespace distgrad::testing {

using Partition = std::vector<std::vector<int>>;

class RealRanks {
 public:
  DistributedRun run(RunRequest request) {
    request.backend = "gloo";
    if (request.weights.empty())
      request.weights.assign(static_cast<std::size_t>(request.program.world_size), 1.0);
    const Ticket ticket = pool_.run(std::move(request), 30);
    return std::get<DistributedRun>(pool_.wait(ticket).value().result);
  }

 private:
  WorkerPool pool_{{.rank_commands = {{std::string(DISTGRAD_BIN_DIR) + "/distgrad-rank"}}}};
};

inline Input local_input(const std::string& name, const std::vector<at::Tensor>& by_rank,
                         bool requires_grad) {
  Input input;
  input.name = name;
  std::vector<Array> values;
  for (const at::Tensor& x : by_rank) values.push_back(array_of(x.clone()));
  input.value = std::move(values);
  input.requires_grad = requires_grad;
  input.layout = {{"", Layout{}}};
  return input;
}

// Returns a program of one call "y" of the sample, made by each list of ranks as a group.
// `operands` is indexed by rank of the world.
inline Program one_call(const Sample& sample, const Partition& partition,
                        const std::vector<at::Tensor>& operands) {
  Program program;
  program.world_size = static_cast<int>(operands.size());
  CollectiveCall call = sample.spec;
  call.operand.text = "x";
  if (partition.size() > 1) {
    program.groups = {{"part", partition, false}};
    call.group = "part";
  }
  program.inputs = {local_input("x", operands, true)};
  program.steps = {{"y", "/steps/0", call}};
  return program;
}

inline bool close(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && at::allclose(a, b, 1e-12, 1e-12);
}

// Returns a sample's operands for every list; each list gets others than the one before.
inline std::vector<at::Tensor> operands_of(const Sample& sample, const Partition& partition) {
  std::size_t size = 0;
  for (const auto& list : partition) size += list.size();
  std::vector<at::Tensor> operands(size);
  for (std::size_t l = 0; l < partition.size(); ++l)
    for (std::size_t i = 0; i < partition[l].size(); ++i)
      operands[static_cast<std::size_t>(partition[l][i])] =
          l == 0 ? sample.operands[i] : sample.operands[i].flip({-1}) * (l + 1);
  return operands;
}

// Returns stacked cotangents indexed by rank: `random` ones of small integers, then all unit ones.
inline std::vector<at::Tensor> cotangents_of(const std::vector<at::Tensor>& outputs,
                                             std::int64_t random, bool with_units) {
  std::int64_t units = 0;
  for (const at::Tensor& y : outputs) units += with_units ? y.numel() : 0;
  std::vector<at::Tensor> stacked;
  std::int64_t before = random;
  for (std::size_t r = 0; r < outputs.size(); ++r) {
    const std::int64_t n = outputs[r].numel();
    at::Tensor own = at::zeros({random + units, n}, at::kDouble);
    for (std::int64_t k = 0; k < random; ++k)
      own[k].copy_((at::arange(n, at::kDouble) * (k + 2) + static_cast<double>(3 * r + 5 * k + 1))
                       .remainder(7) -
                   3);
    if (with_units) own.narrow(0, before, n).copy_(at::eye(n, at::kDouble));
    before += n;
    Shape shape = outputs[r].sizes().vec();
    shape.insert(shape.begin(), random + units);
    stacked.push_back(own.reshape(shape));
  }
  return stacked;
}

// Returns the outputs in float64, indexed by rank.
inline std::vector<at::Tensor> outputs_of(const Program& program,
                                          const std::vector<at::Tensor>& operands) {
  std::vector<at::Tensor> exact;
  for (const at::Tensor& x : operands) exact.push_back(x.to(at::kDouble));
  return simulate_step(program, program.steps[0], exact, nullptr, nullptr);
}

}  // namespace distgrad::testing
