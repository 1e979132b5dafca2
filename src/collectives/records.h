// The records, one a file. Only collective.cpp needs them.
#pragma once

#include "collectives/collective.h"

namespace distgrad {

extern const Collective kAllReduce, kReduce, kBroadcast, kAllGather, kGather, kReduceScatter,
    kScatter, kAllToAll, kSendRecv, kCopy, kSlice;

}  // namespace distgrad
