// Reorders the ranks of a group the way that mistaken code does, which takes world ranks for group
// ranks.
#pragma once

#include <string_view>
#include <vector>

namespace distgrad {

inline constexpr std::string_view kGroupOrders[] = {
    "sorted",      // ascending
    "world_rank",  // each rank at the place (its world rank) modulo (the group's size)
    "world_root",  // puts the world rank that equals the root's number at the root's place
};

// Returns `list` in one of kGroupOrders, or unchanged if `order` does not yield a permutation of
// it.
std::vector<int> reordered(const std::vector<int>& list, std::string_view order, int root);

}  // namespace distgrad
