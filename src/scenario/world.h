// Checks what depends on the number of ranks in a scenario.
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

// Returns everything that does not fit a world of this size; figures (`truth` in numbers) only with
// kCheck.
enum class Figures { kIgnore, kCheck };
std::vector<WorldProblem> problems_with_world(const Scenario&, int world_size, Figures);

// Reports an objective that means nothing in this scenario and world, since it names a missing rank
// or axis.
std::optional<WorldProblem> problem_with_objective(const Scenario&, const Objective&,
                                                   int world_size);

// Returns mesh axes first, in mesh order, then `groups` in the file's order. Call it only for
// worlds without problems.
std::vector<Group> groups_for(const Scenario&, int world_size);

}  // namespace distgrad
