#include "model/group_order.h"

#include <algorithm>
#include <utility>

namespace distgrad {
namespace {

std::vector<int> by_world_rank(const std::vector<int>& list) {
  std::vector<int> placed(list.size(), -1);
  for (const int rank : list) {
    int& place = placed[static_cast<std::size_t>(rank) % list.size()];
    if (place >= 0) return list;
    place = rank;
  }
  return placed;
}

std::vector<int> with_world_root(std::vector<int> list, int root) {
  const auto at = std::find(list.begin(), list.end(), root);
  if (at != list.end() && root < static_cast<int>(list.size()))
    std::swap(*at, list[static_cast<std::size_t>(root)]);
  return list;
}

}  // namespace

std::vector<int> reordered(const std::vector<int>& list, std::string_view order, int root) {
  if (order == "world_rank") return by_world_rank(list);
  if (order == "world_root") return with_world_root(list, root);
  std::vector<int> sorted = list;
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace distgrad
