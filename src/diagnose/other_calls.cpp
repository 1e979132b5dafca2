#include "diagnose/other_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "diagnose/call_on_ranks.h"

namespace distgrad {
namespace {

using Partition = std::vector<std::vector<int>>;

constexpr int kMostRoots = 8;
constexpr const char* kReordered = "reordered_group";

// By which members are grouped, whatever their order.
std::set<std::set<int>> members(const Partition& partition) {
  std::set<std::set<int>> all;
  for (const auto& list : partition) all.insert(std::set<int>(list.begin(), list.end()));
  return all;
}

int smallest_group(const Partition& partition) {
  std::size_t smallest = partition.empty() ? 0 : partition[0].size();
  for (const auto& list : partition) smallest = std::min(smallest, list.size());
  return static_cast<int>(smallest);
}

// --- Orders ---

std::vector<int> ascending(std::vector<int> list, int) {
  std::sort(list.begin(), list.end());
  return list;
}

// Each rank at the place that its rank in the world, modulo the group's size, names.
std::vector<int> by_world_rank(std::vector<int> list, int) {
  std::vector<int> placed(list.size(), -1);
  for (const int rank : list) {
    int& place = placed[static_cast<std::size_t>(rank) % list.size()];
    if (place >= 0) return list;  // two would have one place
    place = rank;
  }
  return placed;
}

// The rank of the world that `root` names put where the root is.
std::vector<int> with_world_root(std::vector<int> list, int root) {
  const auto at = std::find(list.begin(), list.end(), root);
  if (at != list.end() && root < std::ssize(list))
    std::swap(*at, list[static_cast<std::size_t>(root)]);
  return list;
}

struct Order {
  std::vector<int> (*of)(std::vector<int> list, int root);
  bool is_of_root;  // only where the call has one
  std::string_view happened;
};
constexpr std::array kOrders = std::to_array<Order>({
    {ascending, false, "counted the group's ranks in ascending order, which is not the group's own."},
    {by_world_rank, false, "took ranks of the world for ranks within the group."},
    {with_world_root, true, "took the root for a rank of the world; it counts within the group."},
});

void add_orders(const Program& program, const CollectiveCall& call, std::vector<OtherCall>& all) {
  if (call.group.empty()) return;
  const Partition own = partition_of(program, call.group);
  std::set<Partition> known = {own};
  for (const Order& order : kOrders) {
    if (order.is_of_root && !traits(call.kind).takes_root) continue;
    Group group{kReordered, {}, false};
    for (const auto& list : own) group.partition.push_back(order.of(list, call.root));
    if (!known.insert(group.partition).second) continue;
    OtherCall other{"group-rank", std::string(order.happened),
                    "Count by the rank within the group, in the order in which the group lists its "
                    "ranks: torch.distributed.get_group_rank gives it.",
                    call, program.groups};
    other.call.group = group.name;
    other.groups.push_back(std::move(group));
    all.push_back(std::move(other));
  }
}

// --- Groups and roots ---

// What counts within the group must exist there.
bool fits(const CollectiveCall& call, const Partition& partition) {
  const int smallest = smallest_group(partition);
  if (call.root >= smallest) return false;
  for (const auto& [source, to] : call.pairs)
    if (source >= smallest || to >= smallest) return false;
  return call.splits.empty() ||
         std::all_of(partition.begin(), partition.end(),
                     [&](const auto& list) { return list.size() == call.splits[0].size(); });
}

void add_groups(const Program& program, const CollectiveCall& call, std::vector<OtherCall>& all) {
  std::set<std::set<std::set<int>>> known = {members(partition_of(program, call.group))};
  const auto propose = [&](const std::string& name, const std::string& words) {
    const Partition partition = partition_of(program, name);
    if (!known.insert(members(partition)).second || !fits(call, partition)) return;
    OtherCall other{"wrong-group", "ran over " + words + ".",
                    "Hand the group of the forward call to the collective in backward, too.", call,
                    program.groups};
    other.call.group = name;
    all.push_back(std::move(other));
  };
  propose("", "the whole world instead of the call's own group");
  for (const Group& group : program.groups)
    propose(group.name, fmt::format("the group {} instead of the call's own", group.name));
}

void add_roots(const Program& program, const CollectiveCall& call, std::vector<OtherCall>& all) {
  if (!traits(call.kind).takes_root) return;
  const int smallest = smallest_group(partition_of(program, call.group));
  for (int root = 0; root < std::min(smallest, kMostRoots); ++root) {
    if (root == call.root) continue;
    OtherCall other{"wrong-slice", fmt::format("took rank {} of the group for the root.", root),
                    "Use the root of the forward call in backward, too.", call, program.groups};
    other.call.root = root;
    all.push_back(std::move(other));
  }
}

}  // namespace

std::vector<OtherCall> other_calls(const Program& program, const CollectiveCall& call) {
  std::vector<OtherCall> all;
  add_orders(program, call, all);
  add_roots(program, call, all);
  add_groups(program, call, all);
  return all;
}

}  // namespace distgrad
