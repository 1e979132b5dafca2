// Implements slice: each rank gets its own chunk of its own operand (Megatron's scatter). It is
// local in forward and backward.
#include <ATen/ATen.h>

#include "rank/collectives/common.h"
#include "rank/collectives/records.h"

namespace distgrad {
namespace slice {

std::vector<at::Tensor> simulate(const Call& call, const std::vector<at::Tensor>& operands) {
  std::vector<at::Tensor> outputs;
  for (int r = 0; r < call.size; ++r) outputs.push_back(chunk_of(call, operands[r], r));
  return outputs;
}

at::Tensor forward(const Call& call, Connection& group, const at::Tensor& operand,
                   SavedForBackward&) {
  return chunk_of(call, operand.detach(), group.rank()).clone(at::MemoryFormat::Contiguous);
}

at::Tensor backward(const Call& call, Connection& group, const SavedForBackward& saved,
                    const at::Tensor& cotangent) {
  at::Tensor whole = at::zeros_like(saved.operand, at::MemoryFormat::Contiguous);
  chunk_of(call, whole, group.rank()).copy_(cotangent);
  return whole;
}

at::Tensor in_place(const Call& call, Connection& group, const at::Tensor& operand) {
  return chunk_of(call, operand, group.rank());
}

}  // namespace slice

const Collective kSlice = {CollectiveKind::kSlice, slice::simulate, slice::forward, slice::backward,
                           slice::in_place};

}  // namespace distgrad
