// Writes the options of one call as Python text. Internal to this folder.
#pragma once

#include <string>

#include "model/program.h"

namespace distgrad {

// Returns for example ", op=Sum(), dim=0": a comma stands before each option.
std::string options_text(const CollectiveCall&);

// Does the same, but spells the op as torch.distributed does: "op=dist.ReduceOp.SUM".
std::string plain_options_text(const CollectiveCall&);

// Returns what a rank's backward gives by the rule (model/libraries.h), as a Python expression of
// the cotangent `g` and perhaps of `x`, `y`, `ctx` and `group`. Empty where the rule has no Python.
std::string backward_text(const CollectiveCall&, const std::string& rule);

}  // namespace distgrad
