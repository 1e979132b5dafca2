// Implements reduce: root gets the reduction, others get zeros.
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "rank/collectives/common.h"
#include "rank/collectives/records.h"

namespace distgrad {
namespace reduce {

std::vector<at::Tensor> simulate(const Call& call, const std::vector<at::Tensor>& operands) {
  std::vector<at::Tensor> outputs;
  for (const at::Tensor& x : operands) outputs.push_back(at::zeros_like(x));
  outputs[call.spec->root] = reduction(call, operands);
  return outputs;
}

at::Tensor forward(const Call& call, Connection& group, const at::Tensor& operand,
                   SavedForBackward&) {
  const bool premul = call.spec->op == ReduceOp::kPremulSum;
  const at::Tensor total =
      premul ? group.reduce(operand.detach() * call.spec->factor, ReduceOp::kSum, call.spec->root)
             : group.reduce(operand, call.spec->op, call.spec->root);
  return group.rank() == call.spec->root ? total : at::zeros_like(total);
}

at::Tensor backward(const Call& call, Connection& group, const SavedForBackward& saved,
                    const at::Tensor& cotangent) {
  return native_reduction_adjoint(call, group, saved, group.broadcast(cotangent, call.spec->root));
}

at::Tensor in_place(const Call& call, Connection& group, const at::Tensor& operand) {
  std::vector<at::Tensor> tensors{operand.clone(at::MemoryFormat::Contiguous)};
  c10d::ReduceOptions options;
  options.reduceOp = torch_reduce_op(*call.spec);
  options.rootRank = call.spec->root;
  group.process_group().reduce(tensors, options)->wait();
  // What is left in the buffer off root is no result; the step's result there is zeros.
  return group.rank() == call.spec->root ? tensors[0] : attached_zeros(tensors[0]);
}

}  // namespace reduce

const Collective kReduce = {CollectiveKind::kReduce, reduce::simulate, reduce::forward,
                            reduce::backward, reduce::in_place};

}  // namespace distgrad
