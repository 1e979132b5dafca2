// Implements scatter: each rank gets its own chunk of root's operand.
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "rank/collectives/common.h"
#include "rank/collectives/records.h"

namespace distgrad {
namespace scatter {

std::vector<at::Tensor> simulate(const Call& call, const std::vector<at::Tensor>& operands) {
  check_same_shape(call, operands);
  return chunks_of(call, operands[call.spec->root]);
}

at::Tensor forward(const Call& call, Connection& group, const at::Tensor& operand,
                   SavedForBackward&) {
  const at::Tensor whole = group.broadcast(operand, call.spec->root);
  return chunk_of(call, whole, group.rank()).clone(at::MemoryFormat::Contiguous);
}

at::Tensor backward(const Call& call, Connection& group, const SavedForBackward& saved,
                    const at::Tensor& cotangent) {
  const at::Tensor whole = at::cat(group.all_gather_uneven(cotangent), dim_of(call, saved.operand));
  return group.rank() == call.spec->root ? whole : at::zeros_like(whole);
}

at::Tensor in_place(const Call& call, Connection& group, const at::Tensor& operand) {
  std::vector<at::Tensor> chunks;
  for (const at::Tensor& chunk : chunks_of(call, operand)) chunks.push_back(chunk.contiguous());
  std::vector<at::Tensor> outputs{at::zeros_like(chunks[group.rank()].detach())};
  std::vector<std::vector<at::Tensor>> inputs;
  if (group.rank() == call.spec->root) inputs.push_back(chunks);
  c10d::ScatterOptions options;
  options.rootRank = call.spec->root;
  group.process_group().scatter(outputs, inputs, options)->wait();
  return outputs[0];
}

}  // namespace scatter

const Collective kScatter = {CollectiveKind::kScatter, scatter::simulate, scatter::forward,
                             scatter::backward, scatter::in_place};

}  // namespace distgrad
