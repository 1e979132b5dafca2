// Draws from a seed backwards that are linear and wrong and have no name. As mutants they test that
// such a backward is found and measured all the same. Each is a pure joint function, as every rule;
// unit cotangents give its matrix.
#pragma once

#include <cstdint>
#include <vector>

#include "rank/rules/rule.h"

namespace distgrad {

// Computes x̄_i = Σ_r c(i, r) B(i, r) ȳ_r + S(i, r) ȳ_r, where B are the blocks of the adjoint and
// c small numbers. The seed, modulo kLinearForms, says what is wrong: only the numbers (any, or
// those of a sum that stops, turns a sign or counts a rank twice), or which elements are taken (S:
// another rank's, in another order).
inline constexpr std::uint64_t kLinearForms = 8;
std::vector<at::Tensor> linear_mistake(std::uint64_t seed, const Call&, const JointValues&);

}  // namespace distgrad
