// Writes a backward as a formula: "x̄_r = Σ_k ȳ_k[r]". x̄_r is the gradient of rank r's operand,
// ȳ_k the cotangent of rank k's output. Ranks count within the group if all groups do the same. [a]
// is the a-th of the pieces, one for each rank of the group, that the collective cuts.
#pragma once

#include <string>

#include "judge/formula_view.h"

namespace distgrad {

std::string formula_of(const FormulaView&, const CollectiveCall&);

// Writes a measured basis by element: "x̄_0[1] = 2 ȳ_1[0] + ȳ_2[3]; ...". It is complete: it gives
// M.
std::string formula_by_element(const Measurement&);

}  // namespace distgrad
