#include "verify/shared_truth.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "judge/objective_truths.h"
#include "scenario/cases.h"
#include "verify/case_workers.h"

namespace distgrad {
namespace {

// Changing the world size costs time, so this many cases are sorted by size.
constexpr std::size_t kTogether = 512;

// Holds what decides the truth and its bounds: scenario, world size, dtype, objective, whether on a
// GPU, interpreter.
using Key = std::tuple<const Scenario*, int, DType, std::string, bool, std::string>;

// Code gives the truth in the interpreter that runs it.
Key key_of(const Case& c) {
  return {c.scenario,           c.world_size, c.dtype,
          spelled(c.objective), is_on_gpu(c), calls_code(c) ? c.python : ""};
}

// Returns the weights that `reference` starts with, at the truth's scale: a sync of "mean" later
// does the divisions that they leave to it.
std::vector<double> reference_weights(Program program, const Objective& objective) {
  for (Input& input : program.inputs) input.sync.clear();
  return backward_weights(program, objective, !has_code(program.steps));
}

}  // namespace

std::deque<std::vector<std::size_t>> grouped_by_truth(std::span<const Case> cases,
                                                      const std::vector<std::size_t>& chosen) {
  std::deque<std::vector<std::size_t>> groups;
  std::map<Key, std::size_t> by_key;
  for (const std::size_t i : chosen) {
    const auto [found, is_new] = by_key.emplace(key_of(cases[i]), groups.size());
    if (is_new) groups.emplace_back();
    groups[found->second].push_back(i);
  }
  const auto place = [&](const std::vector<std::size_t>& group) {
    return std::pair(group.front() / kTogether, cases[group.front()].world_size);
  };
  std::stable_sort(groups.begin(), groups.end(),
                   [&](const auto& a, const auto& b) { return place(a) < place(b); });
  return groups;
}

SimulateRequest first_request(const SharedTruth& truth, std::span<const Case> cases,
                              const VerifyOptions& options) {
  const Case& first = cases[truth.cases.front()];
  SimulateRequest request;
  request.program = program_for(first);
  const Program& program = request.program;
  // To check that the ranks agree, if the objective says so, takes more than one row.
  const bool one_row_is_enough =
      !options.every_objective && ranks_that_agree(program, first.objective).empty() &&
      std::all_of(truth.cases.begin(), truth.cases.end(),
                  [&](std::size_t i) { return is_expected_to_match(cases[i]); });
  if (needs_differences(program.steps))  // Differences give every rank's gradients anyway.
    request.weights = weights_to_ask(program, first.objective, Detail::kEveryRank);
  else if (one_row_is_enough)
    request.weights = {truth_weights(program, first.objective)};
  else
    request.weights = weights_to_ask(program, first.objective);
  request.bounds_may_wait = !options.bounds_for_all;  // until some bit differs
  request.on_gpu = is_on_gpu(first);
  request.with_differences = options.with_differences;
  auto run_weights = reference_weights(program, first.objective);
  if (run_weights != request.weights.front()) request.run_weights = {std::move(run_weights)};
  return request;
}

std::shared_ptr<const ExpectedValues> expected_values(const Program& program,
                                                      const SimulationRun& run) {
  if (!run.payload.fd || run.simulation.gradients.empty()) return nullptr;
  auto expected = std::make_shared<ExpectedValues>();
  expected->payload = run.payload;
  const auto shared = [&](const std::optional<Array>& value) {
    return value && run.payload.holds(*value) ? value : std::nullopt;
  };
  for (const Gradient& gradient : run.simulation.gradients[0]) {
    const Input& input = *std::ranges::find(program.inputs, gradient.input, &Input::name);
    const bool is_cut = std::ranges::any_of(input.layout, [](const AxisLayout& entry) {
      return entry.layout.kind == Layout::Kind::kShard;
    });
    auto& by_rank = expected->gradients.emplace_back();
    for (int rank = 0; rank < program.world_size && !is_cut; ++rank)
      by_rank.push_back(
          shared(gradient.parts.at(input.is_local() ? static_cast<std::size_t>(rank) : 0)));
  }
  for (const Step& step : program.steps) {
    if (!step.is_reported()) continue;
    auto& by_rank = expected->steps.emplace_back();
    for (const StepValue& value : run.simulation.steps)
      if (value.step == step.name)
        for (const Array& array : value.by_rank) by_rank.push_back(shared(array));
  }
  return expected;
}

std::vector<Case> one_for_each_truth(std::span<const Case> cases) {
  std::vector<Case> kept;
  std::set<Key> seen;
  for (const Case& c : cases) {
    if (!seen.insert(key_of(c)).second) continue;
    kept.push_back(c);
    // What the file expects of a subject does not concern the simulation, unless the file's own
    // guards are expected to fail.
    const std::string& finding = c.expected.finding;
    if (finding != "truth" && finding != "program") kept.back().expected = {};
  }
  return kept;
}

}  // namespace distgrad
