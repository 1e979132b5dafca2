// A backward as a formula: "x̄_r = Σ_k ȳ_k[r]". x̄_r is what rank r's operand gets, ȳ_k the cotangent
// of rank k's output; ranks count within the group where all groups do the same. [a] is the a-th
// piece, of those that the collective cuts a tensor into, one for each rank of the group.
#pragma once

#include <string>

#include "judge/formula_view.h"

namespace distgrad {

std::string formula_of(const FormulaView&, const CollectiveCall&);

// By element, of a basis: "x̄_0[1] = 2 ȳ_1[0] + ȳ_2[3]; ...". Complete: who reads it can write M
// down.
std::string formula_by_element(const Measurement&);

}  // namespace distgrad
