// Implements send_recv for pairs of [source, destination]: a rank gets what was sent to it, or else
// zeros of the operand's shape.
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <optional>

#include "rank/collectives/common.h"
#include "rank/collectives/records.h"

namespace distgrad {
namespace send_recv {

// Returns the source; a destination appears once.
std::optional<int> source_of(const Call& call, int destination) {
  for (const auto& [source, to] : call.spec->pairs)
    if (to == destination) return source;
  return std::nullopt;
}

std::vector<at::Tensor> simulate(const Call& call, const std::vector<at::Tensor>& operands) {
  std::vector<at::Tensor> outputs;
  for (int r = 0; r < call.size; ++r) {
    const std::optional<int> source = source_of(call, r);
    outputs.push_back(source ? operands[*source].alias() : at::zeros_like(operands[r]));
  }
  return outputs;
}

at::Tensor empty_of(const at::Tensor& like) { return like.detach().reshape({-1}).narrow(0, 0, 0); }

at::Tensor forward(const Call& call, Connection& group, const at::Tensor& operand,
                   SavedForBackward& saved) {
  saved.operand_shapes = group.all_gather_shapes(operand);
  std::vector<at::Tensor> chunks(call.size, empty_of(operand));
  for (const auto& [source, to] : call.spec->pairs)
    if (source == group.rank()) chunks[to] = operand.detach();
  std::vector<Shape> received(call.size, Shape{0});
  const std::optional<int> source = source_of(call, group.rank());
  if (source) received[*source] = saved.operand_shapes[*source];
  const std::vector<at::Tensor> parts = group.all_to_all(chunks, received);
  return source ? parts[*source].clone() : at::zeros_like(operand, at::MemoryFormat::Contiguous);
}

at::Tensor backward(const Call& call, Connection& group, const SavedForBackward& saved,
                    const at::Tensor& cotangent) {
  std::vector<at::Tensor> chunks(call.size, empty_of(cotangent));
  const std::optional<int> source = source_of(call, group.rank());
  if (source) chunks[*source] = cotangent;
  std::vector<Shape> received(call.size, Shape{0});
  for (const auto& [from, to] : call.spec->pairs)
    if (from == group.rank()) received[to] = saved.operand.sizes().vec();
  const std::vector<at::Tensor> parts = group.all_to_all(chunks, received);
  at::Tensor total = at::zeros_like(saved.operand, at::MemoryFormat::Contiguous);
  for (const auto& [from, to] : call.spec->pairs)
    if (from == group.rank()) total.add_(parts[to]);
  return total;
}

at::Tensor in_place(const Call& call, Connection& group, const at::Tensor& operand) {
  const std::vector<Shape> shapes = group.all_gather_shapes(operand);
  at::Tensor result = attached_zeros(operand);
  std::vector<c10::intrusive_ptr<c10d::Work>> pending;
  // Sends as torch.distributed.batch_isend_irecv does. Under NCCL a send waits on the stream for
  // its receive, so a ring of single ones would hang.
  const at::DeviceType device = operand.device().type();
  const bool together = group.process_group().getBackend(device)->supportsCoalescing();
  if (together) group.process_group().startCoalescing(device);
  std::vector<std::vector<at::Tensor>> sent;  // kept alive until the work is done
  for (const auto& [source, to] : call.spec->pairs) {
    if (source != group.rank() || to == group.rank()) continue;
    sent.push_back({operand.contiguous()});
    pending.push_back(group.process_group().send(sent.back(), to, 0));
  }
  if (const std::optional<int> source = source_of(call, group.rank())) {
    if (*source == group.rank()) {
      result = operand.clone();  // nobody sends to himself
    } else {
      std::vector<at::Tensor> received{
          at::zeros(shapes[*source], operand.options().requires_grad(false))};
      auto arrival = group.process_group().recv(received, *source, 0);
      if (together)
        pending.push_back(std::move(arrival));
      else
        arrival->wait();
      result = received[0];
    }
  }
  if (together) {
    const bool moves_any = !pending.empty();
    pending.clear();  // the one work of all stands for them
    if (const auto all = group.process_group().endCoalescing(device); moves_any && all)
      pending.push_back(all);
  }
  for (auto& work : pending) work->wait();
  return result;
}

}  // namespace send_recv

const Collective kSendRecv = {CollectiveKind::kSendRecv, send_recv::simulate, send_recv::forward,
                              send_recv::backward, send_recv::in_place};

}  // namespace distgrad
