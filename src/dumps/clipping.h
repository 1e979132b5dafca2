// Recognises what clipping leaves behind.
#pragma once

#include <string>
#include <vector>

#include "dumps/dump.h"
#include "dumps/explain.h"
#include "dumps/parameter.h"

namespace distgrad::dumps {

// Explains all that is wrong by clipping with another norm than the reference's: that of what each
// rank holds, or that of everything with copies counted once a rank. Returns "" if that does not
// fit, or cannot be known.
std::string clipped_by_other_norm(Holders& reference, const Dump& observed, const Tolerance&,
                                  const std::vector<ParameterResult>&);

}  // namespace distgrad::dumps
