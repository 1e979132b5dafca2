// Finds matches that show nothing.
#pragma once

#include <optional>

#include "model/comparison.h"
#include "model/program.h"
#include "model/report.h"
#include "model/run_result.h"

namespace distgrad {

// Reports `vacuous` for gradients that match as those of a wrong backward would, too: no cotangent
// reaches a collective, or there is none, and all gradients are 0 or None; or no cotangent reaches
// a collective and there is no `sync`, which is judged, too; or all gradients are NaN.
std::optional<Finding> vacuous_match(const Program&, const Simulation&, const CaseComparison&);

}  // namespace distgrad
