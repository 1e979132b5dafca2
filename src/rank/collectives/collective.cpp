#include "rank/collectives/collective.h"

#include <array>

#include "rank/collectives/records.h"

namespace distgrad {

const Collective& collective(CollectiveKind kind) {
#define DISTGRAD_ADDRESS(record) &record,
  static const auto records =
      std::to_array<const Collective*>({DISTGRAD_COLLECTIVE_RECORDS(DISTGRAD_ADDRESS)});
#undef DISTGRAD_ADDRESS
  static_assert(records.size() == kCollectives.size(),
                "records.h has a line for each row of kCollectives");
  return *records[static_cast<std::size_t>(kind)];
}

}  // namespace distgrad
