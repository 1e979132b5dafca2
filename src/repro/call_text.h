// One call with its options written into the text. Internal to this folder.
#pragma once

#include <string>

#include "model/program.h"

namespace distgrad {

// "op=Sum(), dim=0", each after a comma.
std::string options_text(const CollectiveCall&);

// The same, with the op as a user of torch.distributed has it: "op=dist.ReduceOp.SUM".
std::string plain_options_text(const CollectiveCall&);

// What a rank's backward gives by the rule (model/libraries.h): an expression of `g`, the
// cotangent, and perhaps of `x`, `y`, `ctx` and `group`. Empty where there is none for it.
std::string backward_text(const CollectiveCall&, const std::string& rule);

}  // namespace distgrad
