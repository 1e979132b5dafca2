// Which cases a reader with little room must see.
#pragma once

#include <vector>

#include "model/report.h"

namespace distgrad {

// Those that are broken or not as expected: broken ones, then mismatches, the largest relative
// error first, then the others. Equal ones in the report's order.
std::vector<const CaseResult*> worst_first(const Report&);

}  // namespace distgrad
