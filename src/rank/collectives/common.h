// What several collectives share: reductions over ranks, cuts, and shape checks. Private to
// src/rank/collectives (and src/rank/rules).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <string>
#include <vector>

#include "rank/collectives/collective.h"

namespace distgrad {

// "rank 0 [2], rank 1 [3]"
std::string shapes_text(const std::vector<at::Tensor>& by_rank);

// All ranks' operands must have one shape; InvalidCall otherwise.
void check_same_shape(const Call&, const std::vector<at::Tensor>& operands);

// `dim` of the call for a tensor of so many dimensions, from 0; `extra` is 1 where the result has
// one dimension more.
std::int64_t dim_of(const Call&, const at::Tensor& operand);

// How long the chunks are that `length` is cut into: `splits` row `row`, else even (InvalidCall if
// that does not divide).
std::vector<std::int64_t> chunk_sizes(const Call&, std::int64_t length, int row = 0);
std::vector<at::Tensor> chunks_of(const Call&, const at::Tensor& x, int row = 0);
// The one chunk, without a view of each other one: of all ranks' these would be N².
at::Tensor chunk_of(const Call&, const at::Tensor& x, int place);

// Differentiable: the reduction of all ranks' operands; one tensor.
at::Tensor reduction(const Call&, const std::vector<at::Tensor>& operands);
// Differentiable: the same value on every rank; its backward sums the ranks' cotangents in one
// reduction.
std::vector<at::Tensor> on_every_rank(const at::Tensor& value, int size);
// Differentiable: stacked on a new leading dim, or concatenated along `dim`.
at::Tensor joined(const Call&, const std::vector<at::Tensor>& operands);

// On a real rank: the reduction of all ranks' operands.
at::Tensor native_reduction(const Call&, Connection&, const at::Tensor& operand);
// The cotangent of rank i's operand of a reduction, given `total`: the cotangent of the (one)
// result. Uses the group for products, minima and maxima. Source: semantics, "Adjoints".
at::Tensor native_reduction_adjoint(const Call&, Connection&, const SavedForBackward&,
                                    const at::Tensor& total);
// Sum of the ranks' cotangents.
at::Tensor summed(Connection&, const at::Tensor& cotangent);

// Where this rank's own piece lies in the joined tensor, and that piece of `whole`.
at::Tensor own_piece(const Call&, const Connection&, const SavedForBackward&,
                     const at::Tensor& whole);

// In torch's terms.
c10d::ReduceOp torch_reduce_op(const CollectiveCall&);
// Not differentiable: zeros attached to the graph of `x`, whose cotangent then is zero.
at::Tensor attached_zeros(const at::Tensor& x);

}  // namespace distgrad
