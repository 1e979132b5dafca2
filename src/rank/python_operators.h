// Connects the operators distgrad_rank::* with the worker that they run in.
#pragma once

#include <vector>

#include "model/run_result.h"
#include "protocol/board.h"

namespace distgrad {

// Has the operators note there at which step this rank is.
void keep_place_in(RankSlot* of_this_rank);

// Returns what was observed of the calls of this case that Python had watched.
std::vector<ObservedCall> take_observed();

}  // namespace distgrad
