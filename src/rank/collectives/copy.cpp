// Implements copy, which returns the operand itself: a replicated value enters a parallel region
// (Megatron's f). It is local in forward and backward.
#include <ATen/ATen.h>

#include "rank/collectives/common.h"
#include "rank/collectives/records.h"

namespace distgrad {
namespace copy {

std::vector<at::Tensor> simulate(const Call&, const std::vector<at::Tensor>& operands) {
  std::vector<at::Tensor> outputs;
  for (const at::Tensor& x : operands) outputs.push_back(x.alias());
  return outputs;
}

at::Tensor forward(const Call&, Connection&, const at::Tensor& operand, SavedForBackward&) {
  return operand.detach().clone();
}

at::Tensor backward(const Call&, Connection&, const SavedForBackward&,
                    const at::Tensor& cotangent) {
  return cotangent;
}

at::Tensor in_place(const Call&, Connection&, const at::Tensor& operand) { return operand.clone(); }

}  // namespace copy

const Collective kCopy = {CollectiveKind::kCopy, copy::simulate, copy::forward, copy::backward,
                          copy::in_place};

}  // namespace distgrad
