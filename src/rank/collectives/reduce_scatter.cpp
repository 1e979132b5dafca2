// Implements reduce_scatter: each rank gets its own chunk of the reduction.
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "rank/collectives/common.h"
#include "rank/collectives/records.h"

namespace distgrad {
namespace reduce_scatter {

std::vector<at::Tensor> simulate(const Call& call, const std::vector<at::Tensor>& operands) {
  return chunks_of(call, reduction(call, operands));
}

at::Tensor forward(const Call& call, Connection& group, const at::Tensor& operand,
                   SavedForBackward&) {
  return chunk_of(call, native_reduction(call, group, operand), group.rank())
      .clone(at::MemoryFormat::Contiguous);
}

at::Tensor backward(const Call& call, Connection& group, const SavedForBackward& saved,
                    const at::Tensor& cotangent) {
  const at::Tensor total = at::cat(group.all_gather_uneven(cotangent), dim_of(call, saved.operand));
  return native_reduction_adjoint(call, group, saved, total);
}

at::Tensor in_place(const Call& call, Connection& group, const at::Tensor& operand) {
  std::vector<std::vector<at::Tensor>> inputs(1);
  for (const at::Tensor& chunk : chunks_of(call, operand)) inputs[0].push_back(chunk.contiguous());
  std::vector<at::Tensor> outputs{
      at::zeros_like(inputs[0][group.rank()], at::MemoryFormat::Contiguous)};
  outputs[0] = outputs[0].detach();
  c10d::ReduceScatterOptions options;
  options.reduceOp = torch_reduce_op(*call.spec);
  group.process_group().reduce_scatter(outputs, inputs, options)->wait();
  return outputs[0];
}

}  // namespace reduce_scatter

const Collective kReduceScatter = {CollectiveKind::kReduceScatter, reduce_scatter::simulate,
                                   reduce_scatter::forward, reduce_scatter::backward,
                                   reduce_scatter::in_place};

}  // namespace distgrad
