// Chooses the cases that a reader with little room must see.
#pragma once

#include <utility>
#include <vector>

#include "model/report.h"

namespace distgrad {

// Returns how bad a case is, the larger the worse: broken above mismatch above all else, then the
// largest error relative to the input's largest element.
std::pair<int, double> badness(const CaseResult&);

// Returns cases that are broken or not as expected: broken ones, then mismatches, the largest
// relative error first, then the others. Equal ones keep the report's order.
std::vector<const CaseResult*> worst_first(const Report&);

}  // namespace distgrad
