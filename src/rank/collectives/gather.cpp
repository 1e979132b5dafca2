// Implements gather: root gets every rank's operand, stacked or concatenated; other ranks get zeros
// of that shape.
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "rank/collectives/common.h"
#include "rank/collectives/records.h"

namespace distgrad {
namespace gather {

std::vector<at::Tensor> simulate(const Call& call, const std::vector<at::Tensor>& operands) {
  const at::Tensor whole = joined(call, operands);
  std::vector<at::Tensor> outputs(call.size);
  for (int r = 0; r < call.size; ++r)
    outputs[r] = r == call.spec->root ? whole : at::zeros_like(whole);
  return outputs;
}

at::Tensor forward(const Call& call, Connection& group, const at::Tensor& operand,
                   SavedForBackward& saved) {
  const at::Tensor whole =
      collective(CollectiveKind::kAllGather).forward(call, group, operand, saved);
  return group.rank() == call.spec->root ? whole : at::zeros_like(whole);
}

at::Tensor backward(const Call& call, Connection& group, const SavedForBackward& saved,
                    const at::Tensor& cotangent) {
  const at::Tensor whole = group.broadcast(cotangent, call.spec->root);
  return own_piece(call, group, saved, whole).clone(at::MemoryFormat::Contiguous);
}

at::Tensor in_place(const Call& call, Connection& group, const at::Tensor& operand) {
  std::vector<Shape> shapes(call.size, operand.sizes().vec());
  if (call.spec->dim) shapes = group.all_gather_shapes(operand);
  const bool is_root = group.rank() == call.spec->root;
  std::vector<at::Tensor> parts;
  for (const Shape& shape : shapes)
    parts.push_back(at::zeros(shape, operand.options().requires_grad(false)));
  std::vector<std::vector<at::Tensor>> outputs;
  if (is_root) outputs.push_back(parts);
  std::vector<at::Tensor> inputs{operand.contiguous()};
  c10d::GatherOptions options;
  options.rootRank = call.spec->root;
  group.process_group().gather(outputs, inputs, options)->wait();
  return call.spec->dim ? at::cat(parts, dim_of(call, operand)) : at::stack(parts);
}

}  // namespace gather

const Collective kGather = {CollectiveKind::kGather, gather::simulate, gather::forward,
                            gather::backward, gather::in_place};

}  // namespace distgrad
