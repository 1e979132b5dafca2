// Declares the records, one a file, in the order of kCollectives.
#pragma once

#include "rank/collectives/collective.h"

#define DISTGRAD_COLLECTIVE_RECORDS(LINE) \
  LINE(kAllReduce)                        \
  LINE(kReduce)                           \
  LINE(kBroadcast)                        \
  LINE(kAllGather)                        \
  LINE(kGather)                           \
  LINE(kReduceScatter)                    \
  LINE(kScatter)                          \
  LINE(kAllToAll)                         \
  LINE(kSendRecv)                         \
  LINE(kCopy)                             \
  LINE(kSlice)

namespace distgrad {

#define DISTGRAD_DECLARED(record) extern const Collective record;
DISTGRAD_COLLECTIVE_RECORDS(DISTGRAD_DECLARED)
#undef DISTGRAD_DECLARED

}  // namespace distgrad
