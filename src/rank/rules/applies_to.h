// Decides which calls a rule or a mistake can be in.
#pragma once

#include "rank/collectives/collective.h"

namespace distgrad {

inline bool anything(const CollectiveCall&) { return true; }
inline bool communicates(const CollectiveCall& c) { return traits(c.kind).communicates; }
inline bool gathers_to_all(const CollectiveCall& c) { return c.kind == CollectiveKind::kAllGather; }
inline bool slices(const CollectiveCall& c) { return c.kind == CollectiveKind::kSlice; }
inline bool reduces(const CollectiveCall& c) { return traits(c.kind).takes_op; }

}  // namespace distgrad
