// The ranks of a group in another order than the group's own: what code makes of them that counts
// by ranks of the world.
#pragma once

#include <string_view>
#include <vector>

namespace distgrad {

inline constexpr std::string_view kGroupOrders[] = {
    "sorted",      // ascending
    "world_rank",  // each rank at the place that its rank in the world, modulo the group's size,
                   // says
    "world_root",  // the rank of the world that the number of the root names is where the root is
};

// `list` in one of kGroupOrders; as it was where that is no order of it.
std::vector<int> reordered(const std::vector<int>& list, std::string_view order, int root);

}  // namespace distgrad
