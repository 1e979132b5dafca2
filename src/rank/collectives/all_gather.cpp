// Implements all_gather: every rank gets every rank's operand, stacked or concatenated.
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "rank/collectives/common.h"
#include "rank/collectives/records.h"

namespace distgrad {
namespace all_gather {

std::vector<at::Tensor> simulate(const Call& call, const std::vector<at::Tensor>& operands) {
  return on_every_rank(joined(call, operands), call.size);
}

at::Tensor forward(const Call& call, Connection& group, const at::Tensor& operand,
                   SavedForBackward& saved) {
  if (!call.spec->dim) return at::stack(group.all_gather(operand));
  const std::vector<at::Tensor> parts = group.all_gather_uneven(operand);
  for (const at::Tensor& part : parts) saved.operand_shapes.push_back(part.sizes().vec());
  return at::cat(parts, dim_of(call, operand));
}

at::Tensor backward(const Call& call, Connection& group, const SavedForBackward& saved,
                    const at::Tensor& cotangent) {
  return own_piece(call, group, saved, summed(group, cotangent))
      .clone(at::MemoryFormat::Contiguous);
}

at::Tensor in_place(const Call& call, Connection& group, const at::Tensor& operand) {
  std::vector<Shape> shapes(call.size, operand.sizes().vec());
  if (call.spec->dim) shapes = group.all_gather_shapes(operand);
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (const Shape& shape : shapes)
    outputs[0].push_back(at::zeros(shape, operand.options().requires_grad(false)));
  std::vector<at::Tensor> inputs{operand.contiguous()};
  group.process_group().allgather(outputs, inputs)->wait();
  return call.spec->dim ? at::cat(outputs[0], dim_of(call, operand)) : at::stack(outputs[0]);
}

}  // namespace all_gather

const Collective kAllGather = {CollectiveKind::kAllGather, all_gather::simulate,
                               all_gather::forward, all_gather::backward, all_gather::in_place};

}  // namespace distgrad
