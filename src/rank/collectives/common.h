// Holds what several collectives share: reductions over ranks, cuts, and shape checks. Private to
// src/rank/collectives (and src/rank/rules).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <string>
#include <vector>

#include "rank/collectives/collective.h"

namespace distgrad {

// Returns "rank 0 [2], rank 1 [3]".
std::string shapes_text(const std::vector<at::Tensor>& by_rank);

// Throws InvalidCall unless all ranks' operands have one shape.
void check_same_shape(const Call&, const std::vector<at::Tensor>& operands);

// Returns the call's `dim` for this operand, counted from 0.
std::int64_t dim_of(const Call&, const at::Tensor& operand);

// Returns the lengths of the chunks of `length`: row `row` of `splits`, or even ones. Throws
// InvalidCall if it does not divide evenly.
std::vector<std::int64_t> chunk_sizes(const Call&, std::int64_t length, int row = 0);
std::vector<at::Tensor> chunks_of(const Call&, const at::Tensor& x, int row = 0);
// Returns one chunk without making views of the others, which would be N² over all ranks.
at::Tensor chunk_of(const Call&, const at::Tensor& x, int place);

// Reduces all ranks' operands to one tensor, differentiably.
at::Tensor reduction(const Call&, const std::vector<at::Tensor>& operands);
// Puts one value on every rank, differentiably. Its backward sums the ranks' cotangents in one
// reduction.
std::vector<at::Tensor> on_every_rank(const at::Tensor& value, int size);
// Stacks on a new leading dim, or concatenates along `dim`, differentiably.
at::Tensor joined(const Call&, const std::vector<at::Tensor>& operands);

// Reduces all ranks' operands on a real rank.
at::Tensor native_reduction(const Call&, Connection&, const at::Tensor& operand);
// Returns the cotangent of this rank's operand of a reduction, if `total` is that of the one
// result. Communicates for products, minima and maxima. Source: semantics, "Adjoints".
at::Tensor native_reduction_adjoint(const Call&, Connection&, const SavedForBackward&,
                                    const at::Tensor& total);
// Sums the ranks' cotangents.
at::Tensor summed(Connection&, const at::Tensor& cotangent);

// Returns this rank's own piece of the joined tensor `whole`.
at::Tensor own_piece(const Call&, const Connection&, const SavedForBackward&,
                     const at::Tensor& whole);

// Returns the op in torch's terms.
c10d::ReduceOp torch_reduce_op(const CollectiveCall&);
// Returns zeros that stay in the graph of `x`, whose cotangent is then zero.
at::Tensor attached_zeros(const at::Tensor& x);

}  // namespace distgrad
