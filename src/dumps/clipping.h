// What clipping leaves behind.
#pragma once

#include <string>

#include "dumps/dump.h"
#include "dumps/parameter.h"

namespace distgrad::dumps {

// Where the pieces of every rank have, all together, the norm of the reference's whole gradients:
// each rank clipped by the norm of its own pieces. Empty: they have not, or it cannot be known.
std::string clipped_by_own(Holders& reference, const Dump& observed, const Tolerance&);

}  // namespace distgrad::dumps
