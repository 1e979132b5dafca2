// Implements broadcast: every rank gets root's operand.
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "rank/collectives/common.h"
#include "rank/collectives/records.h"

namespace distgrad {
namespace broadcast {

std::vector<at::Tensor> simulate(const Call& call, const std::vector<at::Tensor>& operands) {
  check_same_shape(call, operands);
  return on_every_rank(operands[call.spec->root], call.size);
}

at::Tensor forward(const Call& call, Connection& group, const at::Tensor& operand,
                   SavedForBackward&) {
  return group.broadcast(operand, call.spec->root);
}

at::Tensor backward(const Call& call, Connection& group, const SavedForBackward&,
                    const at::Tensor& cotangent) {
  const at::Tensor total = group.reduce(cotangent, ReduceOp::kSum, call.spec->root);
  return group.rank() == call.spec->root ? total : at::zeros_like(total);
}

at::Tensor in_place(const Call& call, Connection& group, const at::Tensor& operand) {
  std::vector<at::Tensor> tensors{operand.clone(at::MemoryFormat::Contiguous)};
  c10d::BroadcastOptions options;
  options.rootRank = call.spec->root;
  group.process_group().broadcast(tensors, options)->wait();
  return tensors[0];
}

}  // namespace broadcast

const Collective kBroadcast = {CollectiveKind::kBroadcast, broadcast::simulate, broadcast::forward,
                               broadcast::backward, broadcast::in_place};

}  // namespace distgrad
