#include "judge/other_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "model/group_order.h"

namespace distgrad {
namespace {

using Partition = std::vector<std::vector<int>>;

constexpr int kMostRoots = 8;
constexpr const char* kReordered = "reordered_group";

// Returns the sets of members, whatever their order.
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

struct Order {
  std::string_view name;  // of kGroupOrders
  std::string_view happened;
};
constexpr std::array kOrders = std::to_array<Order>({
    {"sorted", "placed the group's ranks as in ascending order, which is not the group's own."},
    {"world_rank", "took ranks of the world for ranks within the group."},
    {"world_root", "took the root for a rank of the world; it counts within the group."},
});

void add_orders(const Program& program, const CollectiveCall& call, std::vector<OtherCall>& all) {
  if (call.group.empty()) return;
  const Partition own = program.partition_of(call.group);
  std::set<Partition> known = {own};
  for (const Order& order : kOrders) {
    if (order.name == "world_root" && !traits(call.kind).takes_root) continue;
    Group group{kReordered, {}, false};
    for (const auto& list : own) group.partition.push_back(reordered(list, order.name, call.root));
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

// Returns true if all that counts within the group exists there.
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
  std::set<std::set<std::set<int>>> known = {members(program.partition_of(call.group))};
  const auto propose = [&](const std::string& name, const std::string& words) {
    const Partition partition = program.partition_of(name);
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
  const int smallest = smallest_group(program.partition_of(call.group));
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
