#include "judge/call_on_ranks.h"

#include <algorithm>
#include <cmath>

#include "judge/closeness.h"
#include "judge/user_code_slack.h"
#include "model/distance.h"

namespace distgrad {
namespace {

// Name the inputs of a program that makes one call. No group of a scenario has only these names.
constexpr const char* kOperand = "driven_operand";
constexpr const char* kCotangents = "driven_cotangents";

Input local_input(const char* name, std::vector<Array> by_rank, bool requires_grad) {
  Input input;
  input.name = name;
  input.value = std::move(by_rank);
  input.requires_grad = requires_grad;
  input.layout = {{"", {Layout::Kind::kLocal, 0}}};
  return input;
}

// Stacks each rank's cotangents along a new first dim.
std::vector<Array> stacked(const std::vector<Shape>& shapes, const std::vector<Joint>& cotangents) {
  std::vector<Array> by_rank;
  for (std::size_t r = 0; r < shapes.size(); ++r) {
    std::vector<double> values;
    for (const Joint& joint : cotangents)
      values.insert(values.end(), joint[r].begin(), joint[r].end());
    Shape shape = shapes[r];
    shape.insert(shape.begin(), std::ssize(cotangents));
    by_rank.emplace_back(std::move(shape), std::move(values));
  }
  return by_rank;
}

Program driving_program(const Program& program, const CallOnRanks& seen, CollectiveCall call,
                        const std::vector<Group>& groups, const std::vector<Joint>& cotangents) {
  Program driving;
  driving.world_size = program.world_size;
  driving.dtype = program.dtype;
  driving.groups = groups;
  driving.inputs = {local_input(kOperand, seen.operands, true),
                    local_input(kCotangents, stacked(seen.outputs, cotangents), false)};
  call.operand = {kOperand, ""};
  driving.steps = {{seen.name(), "", std::move(call)}};  // keeps the step's name, which the subject
                                                         // may know
  driving.loss = {seen.name() + ".sum()", ""};
  return driving;
}

// Returns one row a cotangent, of the elements that the ranks sent stacked.
std::optional<std::vector<Joint>> unstacked(const std::vector<std::optional<Array>>& by_rank,
                                            const std::vector<Array>& operands, std::size_t count) {
  std::vector<Joint> rows(count, Joint(operands.size()));
  if (by_rank.size() != operands.size()) return std::nullopt;
  for (std::size_t r = 0; r < operands.size(); ++r) {
    const auto size = static_cast<std::size_t>(operands[r].size());
    if (!by_rank[r]) {
      for (Joint& row : rows) row[r].assign(size, 0.0);
      continue;
    }
    const auto values = by_rank[r]->values();
    if (values.size() != size * count) return std::nullopt;
    for (std::size_t k = 0; k < count; ++k)
      rows[k][r].assign(values.begin() + static_cast<std::ptrdiff_t>(k * size),
                        values.begin() + static_cast<std::ptrdiff_t>((k + 1) * size));
  }
  return rows;
}

std::optional<Simulation> simulated(Machine& machine, const Program& program) {
  SimulateRequest request;
  request.program = program;
  request.weights = {std::vector<double>(static_cast<std::size_t>(program.world_size), 1.0)};
  request.with_guards = false;
  request.drive = Drive{.cotangents = kCotangents};
  Simulation simulation = machine.simulate(request);
  const bool is_whole = !simulation.invalid && simulation.undecided.empty() &&
                        simulation.forward_only.empty() && simulation.gradients.size() == 1 &&
                        simulation.gradients[0].size() == 1 && simulation.bounds.size() == 1;
  return is_whole ? std::optional(std::move(simulation)) : std::nullopt;
}

std::optional<CallOnRanks> call_on_ranks(const Step& step, std::size_t at,
                                         const DistributedRun& run) {
  CallOnRanks all;
  all.step = &step;
  for (const RankResult& rank : run.ranks) {
    if (at >= rank.observed.size() || rank.observed[at].step != step.name) return std::nullopt;
    const ObservedCall& seen = rank.observed[at];
    all.operands.push_back(seen.operand);
    all.operand_strides.push_back(seen.operand_strides);
    all.cotangents.push_back(seen.cotangent);
    all.cotangent_strides.push_back(seen.cotangent_strides);
    all.given.push_back(seen.given);
    const bool wrote = seen.cotangent_after && seen.cotangent &&
                       !same_values(*seen.cotangent_after, *seen.cotangent);
    all.cotangents_after.push_back(wrote ? seen.cotangent_after : std::nullopt);
  }
  return all;
}

}  // namespace

std::vector<CallOnRanks> calls_on_ranks(const Program& program, const DistributedRun& run) {
  std::vector<CallOnRanks> calls;
  std::size_t at = 0, reported = 0;
  for (const Step& step : program.steps) {
    const std::size_t value = reported;
    reported += step.is_reported();
    if (!step.collective()) continue;
    auto call = call_on_ranks(step, at++, run);
    if (!call) return {};
    for (const RankResult& rank : run.ranks) {
      if (value >= rank.steps.size()) return {};
      call->outputs.push_back(rank.steps[value].shape());
    }
    calls.push_back(std::move(*call));
  }
  return calls;
}

std::optional<Responses> right_responses(Machine& machine, const Program& program,
                                         const CallOnRanks& seen, const CollectiveCall& call,
                                         const std::vector<Group>& groups,
                                         const std::vector<Joint>& cotangents) {
  const auto simulation =
      simulated(machine, driving_program(program, seen, call, groups, cotangents));
  if (!simulation) return std::nullopt;
  auto values = unstacked(simulation->gradients[0][0].parts, seen.operands, cotangents.size());
  auto bounds = unstacked(simulation->bounds[0].parts, seen.operands, cotangents.size());
  if (!values || !bounds) return std::nullopt;
  return Responses{std::move(*values), std::move(*bounds)};
}

std::optional<Responses> measured_responses(Machine& machine, const Program& program,
                                            const CallOnRanks& seen,
                                            const std::vector<Joint>& cotangents,
                                            MemoryLayout layout) {
  Drive drive{.cotangents = kCotangents};
  if (layout == MemoryLayout::kAsSeen || layout == MemoryLayout::kOperandAsSeen)
    drive.operand_strides = seen.operand_strides;
  if (layout == MemoryLayout::kAsSeen || layout == MemoryLayout::kCotangentAsSeen)
    drive.cotangent_strides = seen.cotangent_strides;
  const auto run =
      machine.drive(driving_program(program, seen, seen.call(), program.groups, cotangents), drive);
  if (!run || run->error) return std::nullopt;
  std::vector<std::optional<Array>> by_rank;
  for (const RankResult& rank : run->ranks) {
    if (rank.error || !rank.skipped.empty() || rank.gradients.size() != 1) return std::nullopt;
    by_rank.push_back(rank.gradients[0]);
  }
  auto values = unstacked(by_rank, seen.operands, cotangents.size());
  if (!values) return std::nullopt;
  const bool is_none = std::none_of(by_rank.begin(), by_rank.end(),
                                    [](const auto& part) { return part.has_value(); });
  return Responses{std::move(*values), {}, is_none};
}

Joint arrived(const CallOnRanks& seen) {
  Joint joint;
  for (std::size_t r = 0; r < seen.outputs.size(); ++r) {
    const auto size = static_cast<std::size_t>(element_count(seen.outputs[r]));
    joint.emplace_back(size, 0.0);
    if (seen.cotangents[r] && seen.cotangents[r]->values().size() == size)
      std::copy_n(seen.cotangents[r]->values().begin(), size, joint.back().begin());
  }
  return joint;
}

CallJudgement judged(Machine& machine, const Program& program, const CallOnRanks& seen,
                     std::string_view subject, const Tolerance& tolerance) {
  CallJudgement judgement;
  const auto simulation = simulated(
      machine, driving_program(program, seen, seen.call(), program.groups, {arrived(seen)}));
  if (!simulation) return judgement;
  const Simulation roomy = with_user_code_slack(*simulation, subject, program.dtype);
  const auto right = unstacked(roomy.gradients[0][0].parts, seen.operands, 1);
  const auto bounds = unstacked(roomy.bounds[0].parts, seen.operands, 1);
  if (!right || !bounds) return judgement;
  judgement.is_decided = true;
  for (std::size_t r = 0; r < seen.operands.size(); ++r) {
    const std::vector<double>& wanted = (*right)[0][r];
    const auto allowed = [&](std::size_t e) {
      const double declared = tolerance.kind == Tolerance::Kind::kExplicit
                                  ? tolerance.atol + tolerance.rtol * std::abs(wanted[e])
                                  : 0;
      return std::max((*bounds)[0][r][e], declared);
    };
    const std::vector<double> nothing(wanted.size(), 0.0);
    const bool fits = !seen.given[r] || seen.given[r]->shape() == seen.operands[r].shape();
    const auto given = seen.given[r] && fits ? seen.given[r]->values() : std::span(nothing);
    if (fits && difference(given, wanted, allowed).equal) continue;
    judgement.wrong_ranks.push_back(static_cast<int>(r));
    judgement.gave_none = judgement.gave_none || !seen.given[r];
  }
  return judgement;
}

}  // namespace distgrad
