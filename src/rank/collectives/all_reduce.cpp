// Implements all_reduce: every rank gets the reduction over the group.
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "rank/collectives/common.h"
#include "rank/collectives/records.h"

namespace distgrad {
namespace all_reduce {

std::vector<at::Tensor> simulate(const Call& call, const std::vector<at::Tensor>& operands) {
  return on_every_rank(reduction(call, operands), call.size);
}

at::Tensor forward(const Call& call, Connection& group, const at::Tensor& operand,
                   SavedForBackward&) {
  return native_reduction(call, group, operand);
}

at::Tensor backward(const Call& call, Connection& group, const SavedForBackward& saved,
                    const at::Tensor& cotangent) {
  return native_reduction_adjoint(call, group, saved, summed(group, cotangent));
}

at::Tensor in_place(const Call& call, Connection& group, const at::Tensor& operand) {
  std::vector<at::Tensor> tensors{operand.clone(at::MemoryFormat::Contiguous)};
  c10d::AllreduceOptions options;
  options.reduceOp = torch_reduce_op(*call.spec);
  group.process_group().allreduce(tensors, options)->wait();
  return tensors[0];
}

}  // namespace all_reduce

const Collective kAllReduce = {CollectiveKind::kAllReduce, all_reduce::simulate,
                               all_reduce::forward, all_reduce::backward, all_reduce::in_place};

}  // namespace distgrad
