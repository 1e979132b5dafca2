// What the operators distgrad_rank::* need from the process that they run in.
#pragma once

#include "protocol/board.h"

namespace distgrad {

// Has the operators note there at which step this rank is.
void keep_place_in(RankSlot* of_this_rank);

}  // namespace distgrad
