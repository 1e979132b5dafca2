// What of a scenario depends on the number of ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/scenario.h"

namespace distgrad {

struct WorldProblem {
  std::string pointer;
  std::string message;
};

// Everything that does not fit a world of this size; figures (`truth` in numbers) only where asked
// for.
enum class Figures { kIgnore, kCheck };
std::vector<WorldProblem> problems_with_world(const Scenario&, int world_size, Figures);

// An objective that means nothing in this scenario and world: a rank or an axis that there is not.
std::optional<WorldProblem> problem_with_objective(const Scenario&, const Objective&,
                                                   int world_size);

// Mesh axes first, in mesh order, then `groups` in the file's order. Only for worlds without
// problems.
std::vector<Group> groups_for(const Scenario&, int world_size);

}  // namespace distgrad
