// Backward rules that no library is known to have but that people write: slices of the wrong rank, a reduction left out or done
// twice, a cotangent read in the order of its memory. As hypotheses they name such a mistake; as mutants they test the diagnosis.
// Pure joint functions as all rules; private to src/rules.
#pragma once

#include <span>

#include "rules/rule.h"

namespace distgrad {

std::span<const Rule> mistakes();

// The chain rule for the call: autograd through the collective's own simulation.
std::vector<at::Tensor> adjoint_of(const CollectiveCall&, int size, const JointValues&);

}  // namespace distgrad
