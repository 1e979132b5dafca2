#include "scenario/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/number_text.h"
#include "scenario/parts.h"
#include "scenario/printable.h"

namespace distgrad {
namespace {

// Makes the group of an axis that varies every `inner` ranks, as in torch's DeviceMesh.
Group mesh_axis(const MeshAxis& axis, int inner, int world_size) {
  Group group{.name = axis.name, .partition = {}, .is_mesh_axis = true};
  for (int first = 0; first < world_size; ++first) {
    if (first / inner % axis.size != 0) continue;
    std::vector<int>& list = group.partition.emplace_back();
    for (int i = 0; i < axis.size; ++i) list.push_back(first + i * inner);
  }
  return group;
}

Group group_of(const GroupSpec& spec, int world_size) {
  Group group{.name = spec.name, .partition = spec.listed, .is_mesh_axis = false};
  if (spec.size > 0) {
    for (int r = 0; r < world_size; ++r) {
      if (r % spec.size == 0) group.partition.emplace_back();
      group.partition.back().push_back(r);
    }
  } else if (spec.stride > 0) {
    group.partition.resize(static_cast<std::size_t>(std::min(spec.stride, world_size)));
    for (int r = 0; r < world_size; ++r)
      group.partition[static_cast<std::size_t>(r % spec.stride)].push_back(r);
  }
  return group;
}

int mesh_size(const Scenario& scenario) {
  int product = 1;
  for (const MeshAxis& axis : scenario.mesh) product *= axis.size;
  return product;
}

void check_listed_group(const GroupSpec& spec, int world_size,
                        std::vector<WorldProblem>& problems) {
  std::set<int> seen;
  for (std::size_t i = 0; i < spec.listed.size(); ++i)
    for (std::size_t j = 0; j < spec.listed[i].size(); ++j) {
      const int rank = spec.listed[i][j];
      const std::string pointer = fmt::format("{}/{}/{}", spec.pointer, i, j);
      if (rank >= world_size) {
        problems.push_back({pointer, fmt::format("there is no rank {} in a world of {}", rank,
                                                 count_text(world_size, "rank"))});
        return;
      }
      if (!seen.insert(rank).second) {
        problems.push_back(
            {pointer,
             fmt::format("rank {} stands in group {} twice; every rank is in exactly one list",
                         rank, in_quotes(spec.name))});
        return;
      }
    }
  for (int rank = 0; rank < world_size; ++rank)
    if (!seen.contains(rank)) {
      problems.push_back(
          {spec.pointer, fmt::format("rank {} of {} is in no list; every rank is in exactly one",
                                     rank, world_size)});
      return;
    }
}

void check_group(const GroupSpec& spec, int world_size, std::vector<WorldProblem>& problems) {
  if (spec.size > 0 && world_size % spec.size != 0) {
    problems.push_back(
        {spec.pointer + "/size", fmt::format("groups of {} do not divide a world of {}", spec.size,
                                             count_text(world_size, "rank"))});
  } else if (!spec.listed.empty()) {
    check_listed_group(spec, world_size, problems);
  }
}

struct GroupSizes {
  int smallest = kMaxWorldSize;
  int largest = 0;
};

GroupSizes sizes_of(const Group& group) {
  GroupSizes sizes;
  for (const std::vector<int>& list : group.partition) {
    sizes.smallest = std::min(sizes.smallest, static_cast<int>(list.size()));
    sizes.largest = std::max(sizes.largest, static_cast<int>(list.size()));
  }
  return sizes;
}

// Checks options of a collective that count ranks within the group: they must fit every list of its
// partition.
class CallChecker {
 public:
  CallChecker(const Step& step, GroupSizes sizes, std::vector<WorldProblem>& problems)
      : pointer_(step.pointer),
        call_(*step.collective()),
        problems_(problems),
        smallest_(sizes.smallest),
        largest_(sizes.largest) {}

  void check() {
    if (call_.root >= smallest_) add("/root", no_such_rank(call_.root));
    for (std::size_t i = 0; i < call_.pairs.size(); ++i)
      if (const int rank = std::max(call_.pairs[i].first, call_.pairs[i].second);
          rank >= smallest_) {
        add(fmt::format("/pairs/{}", i), no_such_rank(rank));
        return;
      }
    if (!call_.splits.empty()) check_splits();
  }

 private:
  void check_splits() {
    if (smallest_ != largest_) {
      add("/splits",
          fmt::format("the groups have from {} to {} ranks, so one list of splits cannot fit all",
                      smallest_, largest_));
      return;
    }
    const bool square = traits(call_.kind).exchanges();
    if (square && static_cast<int>(call_.splits.size()) != largest_)
      add("/splits",
          fmt::format("has {} for a group of {}", count_text(std::ssize(call_.splits), "row"),
                      count_text(largest_, "rank")));
    for (std::size_t row = 0; row < call_.splits.size(); ++row) {
      if (static_cast<int>(call_.splits[row].size()) == largest_) continue;
      add(square ? fmt::format("/splits/{}", row) : "/splits",
          fmt::format("has {} for a group of {}", count_text(std::ssize(call_.splits[row]), "size"),
                      count_text(largest_, "rank")));
      return;
    }
  }

  std::string no_such_rank(int rank) const {
    return fmt::format("there is no rank {} in a group of {}", rank, count_text(smallest_, "rank"));
  }

  void add(const std::string& below, std::string message) {
    problems_.push_back({pointer_ + below, std::move(message)});
  }

  const std::string& pointer_;
  const CollectiveCall& call_;
  std::vector<WorldProblem>& problems_;
  int smallest_;
  int largest_;
};

void check_values_by_rank(const Scenario& scenario, int world_size, Figures figures,
                          std::vector<WorldProblem>& problems) {
  const auto check = [&](const std::vector<Array>* values, const std::string& pointer,
                         std::string_view hint) {
    if (values && values->size() != static_cast<std::size_t>(world_size))
      problems.push_back(
          {pointer, fmt::format("has {}, the world {}{}", count_text(std::ssize(*values), "value"),
                                count_text(world_size, "rank"), hint)});
  };
  for (const Input& input : scenario.inputs)
    check(std::get_if<std::vector<Array>>(&input.value), input.pointer + "/by_rank", "");
  if (figures == Figures::kIgnore) return;
  for (const Program::Truth& truth : scenario.truth)
    check(std::get_if<std::vector<Array>>(&truth.value), truth.pointer,
          scenario.world_sizes.size() > 1
              ? "; a closed form, in double quotes, serves every world size"
              : "");
}

}  // namespace

std::vector<Group> groups_for(const Scenario& scenario, int world_size) {
  std::vector<Group> groups;
  int inner = world_size;
  for (const MeshAxis& axis : scenario.mesh) {
    inner /= axis.size;
    groups.push_back(mesh_axis(axis, inner, world_size));
  }
  for (const GroupSpec& spec : scenario.groups) groups.push_back(group_of(spec, world_size));
  return groups;
}

std::vector<WorldProblem> problems_with_world(const Scenario& scenario, int world_size,
                                              Figures figures) {
  std::vector<WorldProblem> problems;
  if (const int size = mesh_size(scenario); !scenario.mesh.empty() && size != world_size)
    problems.push_back({"/mesh", fmt::format("is a world of {}, not of {}",
                                             count_text(size, "rank"), world_size)});
  for (const GroupSpec& spec : scenario.groups) check_group(spec, world_size, problems);
  check_values_by_rank(scenario, world_size, figures, problems);
  if (!problems.empty()) return problems;

  std::map<std::string, GroupSizes> sizes = {{"", {world_size, world_size}}};  // by group
  for (const Group& group : groups_for(scenario, world_size)) sizes[group.name] = sizes_of(group);
  for (const Step& step : scenario.steps)
    if (step.collective()) CallChecker(step, sizes.at(step.collective()->group), problems).check();
  return problems;
}

std::optional<WorldProblem> problem_with_objective(const Scenario& scenario,
                                                   const Objective& objective, int world_size) {
  if (objective.kind == Objective::Kind::kRank && objective.rank >= world_size)
    return WorldProblem{"/objective/rank",
                        fmt::format("there is no rank {} in a world of {}", objective.rank,
                                    count_text(world_size, "rank"))};
  if (objective.kind != Objective::Kind::kByAxis) return std::nullopt;
  const bool same_axes =
      objective.axes.size() == scenario.mesh.size() &&
      std::equal(objective.axes.begin(), objective.axes.end(), scenario.mesh.begin(),
                 [](const auto& said, const MeshAxis& axis) { return said.first == axis.name; });
  if (same_axes) return std::nullopt;
  if (scenario.mesh.empty())
    return WorldProblem{
        "/objective", fmt::format("the objective {} is by mesh axis, but the scenario has no mesh",
                                  spelled(objective))};
  std::string axes;
  for (const MeshAxis& axis : scenario.mesh) axes += (axes.empty() ? "" : ", ") + axis.name;
  return WorldProblem{
      "/objective",
      fmt::format("the objective {} does not name the mesh's axes ({})", spelled(objective), axes)};
}

}  // namespace distgrad
