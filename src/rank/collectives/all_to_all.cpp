// Implements all_to_all: rank i cuts its operand as row i of the splits says. Chunk j goes to rank
// j, which joins what it receives.
#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>

#include "rank/collectives/common.h"
#include "rank/collectives/records.h"

namespace distgrad {
namespace all_to_all {

// Returns the shapes that rank `to` receives from each rank, given all operands' shapes.
std::vector<Shape> received_shapes(const Call& call, const std::vector<Shape>& operands,
                                   std::int64_t dim, int to) {
  std::vector<Shape> shapes = operands;
  for (int from = 0; from < call.size; ++from)
    shapes[from][dim] = chunk_sizes(call, operands[from][dim], from)[to];
  return shapes;
}

bool equally_cut(const Call& call, const std::vector<at::Tensor>& operands, std::int64_t dim) {
  const at::Tensor& first = operands[0];
  if (!call.spec->splits.empty() || first.size(dim) % call.size != 0) return false;
  return std::all_of(operands.begin(), operands.end(),
                     [&](const at::Tensor& x) { return x.sizes() == first.sizes(); });
}

// Exchanges chunks by one transposition, which takes N operators instead of N * N.
std::vector<at::Tensor> transposed(const std::vector<at::Tensor>& operands, std::int64_t dim) {
  const auto size = static_cast<std::int64_t>(operands.size());
  const std::int64_t length = operands[0].size(dim) / size;
  std::vector<at::Tensor> rows;
  for (const at::Tensor& x : operands) rows.push_back(x.unsqueeze(0));
  return at::cat(rows, 0)  // from, ..., to * chunk, ...
      .unflatten(dim + 1, {size, length})
      .movedim(dim + 1, 0)  // to, from, ..., chunk, ...
      .movedim(1, dim + 1)  // to, ..., from, chunk, ...
      .flatten(dim + 1, dim + 2)
      .unbind(0);
}

std::vector<at::Tensor> simulate(const Call& call, const std::vector<at::Tensor>& operands) {
  const std::int64_t dim = dim_of(call, operands[0]);
  if (equally_cut(call, operands, dim)) return transposed(operands, dim);
  std::vector<std::vector<at::Tensor>> sent;
  for (int r = 0; r < call.size; ++r) {
    bool fits = operands[r].dim() == operands[0].dim();
    for (std::int64_t d = 0; fits && d < operands[0].dim(); ++d)
      fits = d == dim || operands[r].size(d) == operands[0].size(d);
    if (!fits)
      throw InvalidCall("all_to_all: operands may differ only along dim " + std::to_string(dim) +
                        ": " + shapes_text(operands));
    sent.push_back(chunks_of(call, operands[r], r));
  }
  std::vector<at::Tensor> outputs;
  for (int to = 0; to < call.size; ++to) {
    std::vector<at::Tensor> received;
    for (int from = 0; from < call.size; ++from) received.push_back(sent[from][to]);
    outputs.push_back(at::cat(received, dim));
  }
  return outputs;
}

at::Tensor forward(const Call& call, Connection& group, const at::Tensor& operand,
                   SavedForBackward& saved) {
  const std::int64_t dim = dim_of(call, operand);
  saved.operand_shapes = group.all_gather_shapes(operand);
  const std::vector<Shape> received =
      received_shapes(call, saved.operand_shapes, dim, group.rank());
  return at::cat(group.all_to_all(chunks_of(call, operand, group.rank()), received), dim);
}

at::Tensor backward(const Call& call, Connection& group, const SavedForBackward& saved,
                    const at::Tensor& cotangent) {
  const std::int64_t dim = dim_of(call, saved.operand);
  // This is the inverse exchange: what came from rank r goes back to it.
  std::vector<std::int64_t> sizes;
  for (const Shape& s : received_shapes(call, saved.operand_shapes, dim, group.rank()))
    sizes.push_back(s[dim]);
  std::vector<Shape> back(call.size, saved.operand.sizes().vec());
  const std::vector<std::int64_t> own = chunk_sizes(call, saved.operand.size(dim), group.rank());
  for (int r = 0; r < call.size; ++r) back[r][dim] = own[r];
  return at::cat(group.all_to_all(cotangent.split_with_sizes(sizes, dim), back), dim);
}

at::Tensor in_place(const Call& call, Connection& group, const at::Tensor& operand) {
  const std::int64_t dim = dim_of(call, operand);
  const std::vector<Shape> shapes =
      received_shapes(call, group.all_gather_shapes(operand), dim, group.rank());
  // Gloo has no list form; torch's Python falls back on the flat one, too.
  std::vector<at::Tensor> flat;
  std::vector<std::int64_t> in_counts, out_counts;
  for (const at::Tensor& chunk : chunks_of(call, operand, group.rank())) {
    flat.push_back(chunk.reshape({-1}));
    in_counts.push_back(chunk.numel());
  }
  std::int64_t total = 0;
  for (const Shape& s : shapes) {
    out_counts.push_back(element_count(s));
    total += out_counts.back();
  }
  at::Tensor in = at::cat(flat);
  at::Tensor out = at::zeros({total}, operand.options().requires_grad(false));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // its successor is not in 2.11
  group.process_group().alltoall_base(out, in, out_counts, in_counts)->wait();
#pragma GCC diagnostic pop
  std::vector<at::Tensor> parts = out.split_with_sizes(out_counts);
  for (int r = 0; r < call.size; ++r) parts[r] = parts[r].reshape(shapes[r]);
  return at::cat(parts, dim);
}

}  // namespace all_to_all

const Collective kAllToAll = {CollectiveKind::kAllToAll, all_to_all::simulate, all_to_all::forward,
                              all_to_all::backward, all_to_all::in_place};

}  // namespace distgrad
