// Describes a collective by one record of functions, each collective in its own file: what it
// computes as differentiable tensor code over all ranks, and how one real rank calls it and its
// adjoint. The table is in collective.cpp; docs/adding.md says how to add one.
#pragma once

#include <ATen/core/Tensor.h>

#include <stdexcept>
#include <vector>

#include "model/program.h"
#include "rank/backends/connection.h"

namespace distgrad {

// Holds one group's call: its options and the group's size. Ranks, roots and rows count within it.
struct Call {
  const CollectiveCall* spec = nullptr;
  int size = 1;
};

// Says in one line, with each rank's shape, that the operands do not fit the collective.
class InvalidCall : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Holds what a real rank keeps between forward and backward.
struct SavedForBackward {
  at::Tensor operand;
  at::Tensor output;
  std::vector<Shape> operand_shapes;  // by rank, if the collective had to exchange them
};

struct Collective {
  CollectiveKind kind;

  // Maps all ranks' operands to all ranks' outputs, differentiable by autograd. It is the oracle,
  // so it is plain tensor code. No output may be computed from another, whose cotangent would then
  // count twice (.alias() what several ranks get). Throws InvalidCall for shapes that do not fit.
  std::vector<at::Tensor> (*simulate)(const Call&, const std::vector<at::Tensor>& operands);

  // Maps this real rank's operand to its output, outside autograd. May fill `saved.operand_shapes`.
  at::Tensor (*forward)(const Call&, Connection&, const at::Tensor& operand,
                        SavedForBackward& saved);

  // Computes the native adjoint: maps this rank's output cotangent to its operand's cotangent.
  at::Tensor (*backward)(const Call&, Connection&, const SavedForBackward&,
                         const at::Tensor& cotangent);

  // Calls the collective as a user of torch.distributed would: through the dispatcher, which
  // autograd records in its own way.
  at::Tensor (*in_place)(const Call&, Connection&, const at::Tensor& operand);
};

const Collective& collective(CollectiveKind kind);

}  // namespace distgrad
