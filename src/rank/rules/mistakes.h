// Lists backward rules that no library is known to have but that people write: slices of the wrong
// rank, a reduction left out or done twice, a cotangent read in the order of its memory. As mutants
// they test the diagnosis. They are pure joint functions, as all rules.
#pragma once

#include <span>

#include "rank/rules/rule.h"

namespace distgrad {

std::span<const Rule> mistakes();

// Describes a mistake that a rank makes with its own memory, around a right adjoint. As a rule it
// acts on all ranks' tensors at once; a mutant on a real rank has it act on the tensors that
// autograd passes.
struct LocalMistake {
  std::string_view name;
  bool (*applies)(const CollectiveCall&);
  // Changes what the adjoint reads as operand and cotangent.
  void (*before)(at::Tensor& operand, at::Tensor& cotangent);
  // Returns what is passed on in place of what the adjoint gives. It may write to the cotangent.
  at::Tensor (*after)(const at::Tensor& given, const at::Tensor& cotangent);
};

// Returns nullptr if there is no such mistake.
const LocalMistake* local_mistake_named(std::string_view name);

// Applies the chain rule to the call: autograd through the collective's own simulation.
std::vector<at::Tensor> adjoint_of(const CollectiveCall&, int size, const JointValues&);
std::vector<at::Tensor> adjoint(const Call&, const JointValues&);

}  // namespace distgrad
