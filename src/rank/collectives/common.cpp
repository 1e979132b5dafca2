#include "rank/collectives/common.h"

#include <ATen/ATen.h>

#include <numeric>

#include "rank/backends/torch_connection.h"

namespace distgrad {
namespace {

// Multiplies by a tensor, since NCCL's PREMUL_SUM rounds the factor to the operands' dtype (c10d's
// unpackPreMulSum). Torch's product with a number keeps more of it in the 16-bit dtypes, and a
// bound for only that would blame NCCL.
std::vector<at::Tensor> scaled(std::vector<at::Tensor> operands, double number) {
  const at::Tensor factor = at::full({}, number, operands[0].options().requires_grad(false));
  for (at::Tensor& x : operands) x = x * factor;
  return operands;
}

}  // namespace

std::string shapes_text(const std::vector<at::Tensor>& by_rank) {
  constexpr std::size_t kMostRanks = 8;
  std::string text;
  for (std::size_t r = 0; r < by_rank.size() && r < kMostRanks; ++r) {
    text += (r ? ", rank " : "rank ") + std::to_string(r) + " [";
    for (std::int64_t d = 0; d < by_rank[r].dim(); ++d)
      text += (d ? ", " : "") + std::to_string(by_rank[r].size(d));
    text += "]";
  }
  return by_rank.size() > kMostRanks ? text + ", ..." : text;
}

void check_same_shape(const Call& call, const std::vector<at::Tensor>& operands) {
  for (const at::Tensor& x : operands) {
    if (x.sizes() == operands[0].sizes()) continue;
    throw InvalidCall(
        std::string(traits(call.spec->kind).name) +
        " needs operands of one shape on all ranks of the group: " + shapes_text(operands));
  }
}

std::int64_t dim_of(const Call& call, const at::Tensor& operand) {
  const std::int64_t dim = call.spec->dim.value_or(0);
  const std::int64_t dims = operand.dim();
  if (dim < -dims || dim >= dims)
    throw InvalidCall(std::string(traits(call.spec->kind).name) + ": dim " + std::to_string(dim) +
                      " of an operand with " + std::to_string(dims) + " dimensions");
  return dim < 0 ? dim + dims : dim;
}

std::vector<std::int64_t> chunk_sizes(const Call& call, std::int64_t length, int row) {
  const std::string kind(traits(call.spec->kind).name);
  if (call.spec->splits.empty()) {
    if (length % call.size != 0)
      throw InvalidCall(kind + ": a dimension of " + std::to_string(length) +
                        " does not divide evenly among " + std::to_string(call.size) +
                        " ranks; give splits");
    return std::vector<std::int64_t>(call.size, length / call.size);
  }
  const auto& splits = call.spec->splits.at(call.spec->splits.size() == 1 ? 0 : row);
  const std::int64_t total = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  if (static_cast<int>(splits.size()) != call.size)
    throw InvalidCall(kind + ": " + std::to_string(splits.size()) + " splits for a group of " +
                      std::to_string(call.size) + " ranks");
  if (total != length)
    throw InvalidCall(kind + ": the splits add up to " + std::to_string(total) +
                      ", the dimension is " + std::to_string(length));
  return splits;
}

std::vector<at::Tensor> chunks_of(const Call& call, const at::Tensor& x, int row) {
  const std::int64_t dim = dim_of(call, x);
  return x.split_with_sizes(chunk_sizes(call, x.size(dim), row), dim);
}

at::Tensor chunk_of(const Call& call, const at::Tensor& x, int place) {
  const std::int64_t dim = dim_of(call, x);
  const std::vector<std::int64_t> sizes = chunk_sizes(call, x.size(dim));
  return x.narrow(dim, std::accumulate(sizes.begin(), sizes.begin() + place, std::int64_t{0}),
                  sizes.at(place));
}

at::Tensor reduction(const Call& call, const std::vector<at::Tensor>& operands) {
  check_same_shape(call, operands);
  const at::Tensor all = at::stack(operands);
  switch (call.spec->op) {
    case ReduceOp::kSum:
      return all.sum(0);
    case ReduceOp::kAvg:
      return all.sum(0) / static_cast<double>(call.size);
    case ReduceOp::kPremulSum:
      return at::stack(scaled(operands, call.spec->factor)).sum(0);
    case ReduceOp::kMax:
      return all.amax(0);
    case ReduceOp::kMin:
      return all.amin(0);
    case ReduceOp::kProduct:
      break;
  }
  // A chain's derivative is right with one, two or more zeros.
  at::Tensor product = operands[0].alias();
  for (std::size_t r = 1; r < operands.size(); ++r) product = product * operands[r];
  return product;
}

std::vector<at::Tensor> on_every_rank(const at::Tensor& value, int size) {
  Shape shape = value.sizes().vec();
  shape.insert(shape.begin(), size);
  return value.unsqueeze(0).expand(shape).unbind(0);
}

at::Tensor joined(const Call& call, const std::vector<at::Tensor>& operands) {
  if (!call.spec->dim) {
    check_same_shape(call, operands);
    return at::stack(operands);
  }
  const std::int64_t dim = dim_of(call, operands[0]);
  for (const at::Tensor& x : operands) {
    bool fits = x.dim() == operands[0].dim();
    for (std::int64_t d = 0; fits && d < x.dim(); ++d)
      fits = d == dim || x.size(d) == operands[0].size(d);
    if (!fits)
      throw InvalidCall(std::string(traits(call.spec->kind).name) +
                        ": operands may differ only along dim " + std::to_string(dim) + ": " +
                        shapes_text(operands));
  }
  return at::cat(operands, dim);
}

at::Tensor native_reduction(const Call& call, Connection& group, const at::Tensor& operand) {
  // Only premul_sum multiplies: adding zero would turn -0 into 0, as the sum over ranks does.
  if (call.spec->op == ReduceOp::kPremulSum)
    return group.all_reduce(operand.detach() * call.spec->factor, ReduceOp::kSum);
  return group.all_reduce(operand, call.spec->op);
}

at::Tensor native_reduction_adjoint(const Call& call, Connection& group,
                                    const SavedForBackward& saved, const at::Tensor& total) {
  switch (call.spec->op) {
    case ReduceOp::kSum:
      return total;
    case ReduceOp::kAvg:
      return total / static_cast<double>(call.size);
    case ReduceOp::kPremulSum:
      return total * call.spec->factor;
    case ReduceOp::kProduct: {
      at::Tensor others = at::ones_like(saved.operand);
      const std::vector<at::Tensor> all = group.all_gather(saved.operand);
      for (int r = 0; r < call.size; ++r)
        if (r != group.rank()) others.mul_(all[r]);
      return total * others;
    }
    case ReduceOp::kMin:
    case ReduceOp::kMax: {
      const at::Tensor reduced_value = group.all_reduce(saved.operand, call.spec->op);
      const at::Tensor holds = saved.operand.eq(reduced_value).to(total.scalar_type());
      return total * holds / group.all_reduce(holds, ReduceOp::kSum);
    }
  }
  TORCH_CHECK(false, "no such reduction");
}

at::Tensor summed(Connection& group, const at::Tensor& cotangent) {
  return group.all_reduce(cotangent, ReduceOp::kSum);
}

at::Tensor own_piece(const Call& call, const Connection& group, const SavedForBackward& saved,
                     const at::Tensor& whole) {
  if (!call.spec->dim) return whole.select(0, group.rank());
  const std::int64_t dim = dim_of(call, saved.operand);
  std::int64_t before = 0;
  for (int r = 0; r < group.rank(); ++r) before += saved.operand_shapes[r][dim];
  return whole.narrow(dim, before, saved.operand.size(dim));
}

c10d::ReduceOp torch_reduce_op(const CollectiveCall& spec) {
  if (spec.op != ReduceOp::kPremulSum) return torch_op(spec.op);
  c10d::ReduceOp op;  // torch's own function for this has another name in each version
  op.op_ = c10d::ReduceOp::PREMUL_SUM;
  op.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(spec.factor);
  return op;
}

at::Tensor attached_zeros(const at::Tensor& x) {
  // A product with 0 would keep NaN and infinity; where() does not.
  return at::where(at::zeros({}, x.options().dtype(at::kBool).requires_grad(false)), x,
                   at::zeros({}, x.options().requires_grad(false)));
}

}  // namespace distgrad
