// Backwards that are linear and wrong and that nobody has a name for, drawn from a seed: as mutants
// they test that what has no name is found and measured all the same. A pure joint function, as
// every rule; its matrix comes out of unit cotangents.
#pragma once

#include <cstdint>
#include <vector>

#include "rank/rules/rule.h"

namespace distgrad {

// x̄_i = Σ_r c(i, r) B(i, r) ȳ_r + S(i, r) ȳ_r, where B are the blocks of the adjoint and c small
// numbers. The seed, modulo kLinearForms, says what is wrong: the numbers alone (any, or those of a
// sum that stops, turns a sign or counts a rank twice), or whose elements are taken (S: another
// rank's, in another order).
inline constexpr std::uint64_t kLinearForms = 8;
std::vector<at::Tensor> linear_mistake(std::uint64_t seed, const Call&, const JointValues&);

}  // namespace distgrad
