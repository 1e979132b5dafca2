#include "model/program.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace distgrad {

std::pair<int, int> Group::place_of(int rank) const {
  for (std::size_t list = 0; list < partition.size(); ++list) {
    const auto found = std::find(partition[list].begin(), partition[list].end(), rank);
    if (found != partition[list].end())
      return {static_cast<int>(list), static_cast<int>(found - partition[list].begin())};
  }
  throw std::logic_error("rank " + std::to_string(rank) + " is in no list of group " + name);
}

const Group* Program::group_named(const std::string& name) const {
  for (const Group& group : groups)
    if (group.name == name) return &group;
  return nullptr;
}

std::vector<std::vector<int>> Program::partition_of(const std::string& group) const {
  if (!group.empty()) return group_named(group)->partition;
  std::vector<int> world(static_cast<std::size_t>(world_size));
  std::iota(world.begin(), world.end(), 0);
  return {std::move(world)};
}

std::vector<const Group*> Program::mesh() const {
  std::vector<const Group*> axes;
  for (const Group& group : groups)
    if (group.is_mesh_axis) axes.push_back(&group);
  return axes;
}

bool has_code(const std::vector<Step>& steps) {
  return std::any_of(steps.begin(), steps.end(), [](const Step& s) { return s.code(); });
}

bool needs_differences(const std::vector<Step>& steps) {
  return std::any_of(steps.begin(), steps.end(),
                     [](const Step& s) { return s.code() && s.code()->simulate.empty(); });
}

std::string texts_of(const Step& step) {
  if (const CollectiveCall* call = step.collective()) return call->operand.text;
  if (const auto* expression = std::get_if<Expression>(&step.what)) return expression->text;
  std::string texts;
  for (const Expression& argument : step.code()->arguments)
    texts += (texts.empty() ? "" : ", ") + argument.text;
  return texts;
}

}  // namespace distgrad
