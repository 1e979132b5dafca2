#include "verify/measuring.h"

#include <utility>

namespace distgrad {

RunRequest measuring_request(const Case& c, const SimulateRequest& asked) {
  return {asked.program,
          "reference",
          "gloo",
          backward_weights(asked.program, c.objective, divides_replicated(c, asked.program)),
          "",
          asked.weights};
}

SimulationRun measured(DistributedRun run) {
  SimulationRun simulation;
  simulation.elapsed_s = run.elapsed_s;
  simulation.error = std::move(run.error);
  if (simulation.error || run.ranks.empty()) return simulation;
  if (auto& found = run.ranks.front().measured) simulation.simulation = std::move(*found);
  if (!run.output.empty()) simulation.output = std::move(run.output.front());
  return simulation;
}

bool is_replay(const SimulateRequest& request) {
  return !request.rules.empty() || request.leaves_by_rank || request.with_cotangents;
}

}  // namespace distgrad
