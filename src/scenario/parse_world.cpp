// Reads world_size, mesh and groups.
#include <fmt/format.h>

#include <algorithm>

#include "base/did_you_mean.h"
#include "scenario/parts.h"
#include "scenario/printable.h"

namespace distgrad {
namespace {

std::optional<int> read_world_size(const JsonValue& value, Problems& problems) {
  const auto size = read_integer(value, 1, kMaxWorldSize, problems);
  return size ? std::optional<int>(static_cast<int>(*size)) : std::nullopt;
}

void read_mesh(const JsonValue& value, Parts& parts) {
  if (!read_object(value, "{ \"dp\": 2, \"tp\": 2 }", parts.problems)) return;
  if (value.size() == 0)
    parts.problems.at(value, "names no axis; write { \"dp\": 2 }, or leave it out");
  std::int64_t product = 1;
  for (const JsonValue& axis : value.children()) {
    const auto size = read_world_size(axis, parts.problems);
    parts.scenario.mesh.push_back({axis.key(), size.value_or(1)});
    if (product > kMaxWorldSize) continue;  // reported below
    product *= size.value_or(1);
  }
  if (product > kMaxWorldSize)
    parts.problems.at(value, fmt::format("is a world of more than {} ranks", kMaxWorldSize));
  parts.scenario.world_sizes = {static_cast<int>(product)};
}

void read_world_sizes(const JsonValue& value, Parts& parts) {
  std::vector<int> sizes;
  if (value.is_list() && value.size() == 0)
    parts.problems.at(value, "is an empty list; give at least one size");
  for (const JsonValue& item : value.is_list() ? value.children() : std::vector<JsonValue>{value}) {
    const auto size = read_world_size(item, parts.problems);
    if (!size) continue;
    if (std::find(sizes.begin(), sizes.end(), *size) != sizes.end())
      parts.problems.at(item, fmt::format("{} stands in the list twice", *size));
    if (!parts.scenario.mesh.empty() && *size != parts.scenario.world_sizes.front())
      parts.problems.at(
          item, fmt::format("must be the product of the mesh's axes, {}, not {}; leave it out",
                            parts.scenario.world_sizes.front(), *size));
    sizes.push_back(*size);
  }
  if (parts.scenario.mesh.empty()) parts.scenario.world_sizes = std::move(sizes);
}

bool read_ranks(const JsonValue& list, std::vector<int>& ranks, Problems& problems) {
  if (!read_list(list, "the ranks of one group, as in [[0, 1], [2, 3]]", problems)) return false;
  if (list.size() == 0) {
    problems.at(list, "is a group without ranks");
    return false;
  }
  for (const JsonValue& item : list.children()) {
    const auto rank = read_integer(item, 0, kMaxWorldSize - 1, problems);
    if (!rank) return false;
    ranks.push_back(static_cast<int>(*rank));
  }
  return true;
}

// Reads { "size": 2 } or { "stride": 2 }.
void read_group_rule(const JsonValue& value, GroupSpec& group, Problems& problems) {
  if (!check_keys(value, {"size", "stride"}, problems)) return;
  if (value.size() != 1) {
    problems.at(
        value,
        "must have either \"size\" (consecutive blocks) or \"stride\" (ranks equal modulo it)");
    return;
  }
  const JsonValue only = value.children().front();
  const auto number = read_world_size(only, problems);
  (only.key() == "size" ? group.size : group.stride) = number.value_or(1);
}

void read_groups(const JsonValue& value, Parts& parts) {
  constexpr std::size_t kMostGroups = 100;
  if (!read_object(value, "{ \"tp\": [[0, 1], [2, 3]] }", parts.problems)) return;
  if (value.size() > kMostGroups) {
    parts.problems.at(value, fmt::format("has more than {} groups", kMostGroups));
    return;
  }
  for (const JsonValue& member : value.children()) {
    GroupSpec group;
    group.name = member.key();
    group.pointer = member.pointer();
    if (member.is_list()) {
      if (member.size() == 0) parts.problems.at(member, "lists no ranks; write [[0, 1], [2, 3]]");
      for (const JsonValue& list : member.children()) {
        group.listed.emplace_back();
        if (!read_ranks(list, group.listed.back(), parts.problems)) break;
      }
    } else if (member.is_object()) {
      read_group_rule(member, group, parts.problems);
    } else {
      parts.problems.at(member,
                        "must be [[0, 1], [2, 3]], { \"size\": 2 } or { \"stride\": 2 }, not " +
                            description(member));
    }
    parts.scenario.groups.push_back(std::move(group));
  }
}

}  // namespace

void read_world(Parts& parts) {
  const auto mesh = parts.key("mesh"), world_size = parts.key("world_size"),
             groups = parts.key("groups");
  if (mesh) read_mesh(*mesh, parts);
  if (world_size) read_world_sizes(*world_size, parts);
  if (!mesh && !world_size)
    parts.problems.missing(parts.root, "world_size",
                           "is missing; write \"world_size\": 2, or give a \"mesh\"");
  if (groups) read_groups(*groups, parts);
}

std::vector<std::string> axis_names(const Scenario& scenario) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : scenario.mesh) names.push_back(axis.name);
  return names;
}

bool check_axes(const JsonValue& by_axis, const Scenario& scenario, Problems& problems) {
  const std::vector<std::string> axes = axis_names(scenario);
  bool all_known = true;
  for (const JsonValue& member : by_axis.children()) {
    if (std::find(axes.begin(), axes.end(), member.key()) != axes.end()) continue;
    all_known = false;
    const std::string hint = axes.empty()
                                 ? "; the scenario has no \"mesh\""
                                 : name_hint_or_choices(member.key(), axes, "the mesh has");
    problems.was_misspelt(by_axis, nearest_name(member.key(), axes));
    problems.at_key(member, "unknown mesh axis " + in_quotes(member.key()) + hint);
  }
  return all_known;
}

}  // namespace distgrad
