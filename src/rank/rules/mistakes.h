// Backward rules that no library is known to have but that people write: slices of the wrong rank,
// a reduction left out or done twice, a cotangent read in the order of its memory. As hypotheses
// they name such a mistake; as mutants they test the diagnosis. Pure joint functions as all rules.
#pragma once

#include <span>

#include "rank/rules/rule.h"

namespace distgrad {

std::span<const Rule> mistakes();

// A mistake that a rank makes with its own memory, around an adjoint that is right. As a rule it
// acts on all ranks' tensors at once; a mutant on a real rank has it act on the tensors that
// autograd hands it.
struct LocalMistake {
  std::string_view name;
  bool (*applies)(const CollectiveCall&);
  // What the adjoint reads in place of the operand and the cotangent.
  void (*before)(at::Tensor& operand, at::Tensor& cotangent);
  // What is handed on in place of what the adjoint gives, where the cotangent may be written to.
  at::Tensor (*after)(const at::Tensor& given, const at::Tensor& cotangent);
};

// nullptr for a name that is none.
const LocalMistake* local_mistake_named(std::string_view name);

// The chain rule for the call: autograd through the collective's own simulation.
std::vector<at::Tensor> adjoint_of(const CollectiveCall&, int size, const JointValues&);
std::vector<at::Tensor> adjoint(const Call&, const JointValues&);

}  // namespace distgrad
