#include "collectives/collective.h"

#include "collectives/records.h"

namespace distgrad {

const Collective& collective(CollectiveKind kind) {
  // In the order of the enumeration.
  static const Collective* const records[] = {
      &kAllReduce, &kReduce,   &kBroadcast, &kAllGather, &kGather, &kReduceScatter,
      &kScatter,   &kAllToAll, &kSendRecv,  &kCopy,      &kSlice};
  return *records[static_cast<std::size_t>(kind)];
}

}  // namespace distgrad
