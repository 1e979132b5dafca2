// Turns the graph into the instructions that run. It is the last line of defence: every node that
// the result needs must be one of ours or an operator of the allow-list, whatever the emitter did.
#pragma once

#include "rank/expression/emitter.h"
#include "rank/expression/instructions.h"

namespace distgrad {

// Throws ExpressionError.
InstructionList lower(const EmittedGraph&);

}  // namespace distgrad
