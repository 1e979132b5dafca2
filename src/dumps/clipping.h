// What clipping leaves behind.
#pragma once

#include <string>
#include <vector>

#include "dumps/dump.h"
#include "dumps/explain.h"
#include "dumps/parameter.h"

namespace distgrad::dumps {

// Where all that is wrong is multiplied by the norm of the reference's gradients over that of what
// each rank holds, or over that of all with copies counted once a rank: which of both. Empty: it is
// not, or it cannot be known.
std::string clipped_by_other_norm(Holders& reference, const Dump& observed, const Tolerance&,
                                  const std::vector<ParameterResult>&);

}  // namespace distgrad::dumps
