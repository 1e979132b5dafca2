// A collective is one record of functions, each in its own file: what it computes as differentiable
// tensor code over all ranks, and how one real rank calls it and its adjoint. The table is in
// collective.cpp; to add one see docs/adding.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <stdexcept>
#include <vector>

#include "model/program.h"
#include "rank/backends/connection.h"

namespace distgrad {

// One call by one group: options and the group's size. Ranks, roots and rows count within the
// group.
struct Call {
  const CollectiveCall* spec = nullptr;
  int size = 1;
};

// The operands do not fit the collective; one line that shows each rank's shape.
class InvalidCall : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What a real rank keeps between forward and backward.
struct SavedForBackward {
  at::Tensor operand;
  at::Tensor output;
  std::vector<Shape> operand_shapes;  // by rank, where the collective had to exchange them
};

struct Collective {
  CollectiveKind kind;

  // Operands by rank in, outputs by rank out, differentiable by autograd. Checks shapes
  // (InvalidCall). The oracle: plain tensor code, nothing clever. No output is computed from
  // another: its cotangent would count the other's, too (.alias() what several ranks get).
  std::vector<at::Tensor> (*simulate)(const Call&, const std::vector<at::Tensor>& operands);

  // On a real rank, outside autograd: own operand in, own output out. May fill
  // `saved.operand_shapes`.
  at::Tensor (*forward)(const Call&, Connection&, const at::Tensor& operand,
                        SavedForBackward& saved);

  // The native adjoint: cotangent of own output in, cotangent of own operand out.
  at::Tensor (*backward)(const Call&, Connection&, const SavedForBackward&,
                         const at::Tensor& cotangent);

  // As a user of torch.distributed would call it: through the dispatcher, recorded by autograd as
  // that records it.
  at::Tensor (*in_place)(const Call&, Connection&, const at::Tensor& operand);
};

const Collective& collective(CollectiveKind kind);

}  // namespace distgrad
