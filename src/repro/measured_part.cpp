// Writes the truth of a program that calls code of which only the ranks' forward run is known, as
// central differences of that run.
#include <fmt/format.h>

#include "base/error.h"
#include "model/objective.h"
#include "repro/program_facts.h"
#include "repro/python_text.h"
#include "repro/script_parts.h"

namespace distgrad {
namespace {

// The ranks, too, measure no more elements one by one (src/python/distgrad/ranks/differences.py).
constexpr std::size_t kMostElements = 256;

std::size_t elements_of(const Simulation& simulation) {
  std::size_t count = 0;
  for (const Gradient& gradient : simulation.gradients.at(0))
    for (const auto& part : gradient.parts)
      count += part ? static_cast<std::size_t>(part->size()) : 0;
  return count;
}

void check_measurable(const ReproCase& repro) {
  const Simulation& simulation = repro.simulation;
  const std::string what =
      "repro: the truth of " + repro.which.id + " cannot be measured by a script: ";
  if (!simulation.cuts.empty())
    throw UserError(what + "what the code takes out of autograd would have to be held fixed (" +
                    simulation.cuts.front() + ")");
  if (!simulation.casts.empty())
    throw UserError(what + "the code casts to " + simulation.casts.front() +
                    ", which differences see as steps");
  if (!simulation.undecided.empty() || !simulation.undecided_elements.empty())
    throw UserError(what + (simulation.undecided.empty() ? simulation.undecided_elements.front().why
                                                         : simulation.undecided.front()));
  if (const std::size_t count = elements_of(simulation); count > kMostElements)
    throw UserError(fmt::format("{}it has {} elements, and more than {} take too long one by one",
                                what, count, kMostElements));
}

// Writes the function that returns the ranks' losses at other values of the inputs.
std::string losses_at(const Program& program) {
  std::string text = fmt::format(
      "def losses_at(rank{}):\n    \"\"\"The ranks' losses, in float64, where the inputs have "
      "these values.\"\"\"\n",
      names_of(program.inputs, ", "));
  for (const Input& input : program.inputs)
    text += fmt::format("    {} = {}.clone(){}\n", input.name,
                        input.is_local() ? input.name + "[rank]" : held(program, input),
                        input.requires_grad ? ".requires_grad_()" : "");
  return text + fmt::format(
                    "    losses = [None] * world_size\n    dist.all_gather_object(losses, "
                    "default_dtype(torch.float64)(program)(rank{}).item())\n    return losses\n",
                    names_of(program.inputs, ", "));
}

}  // namespace

std::string measured_truth_part(const ReproCase& repro, const Program& program) {
  check_measurable(repro);
  std::string values, moved;
  for (const Input& input : program.inputs) {
    values += fmt::format("{}\"{}\": {}", values.empty() ? "" : ", ", input.name, input.name);
    if (input.requires_grad)
      moved += fmt::format("{}\"{}\": {}", moved.empty() ? "" : ", ", input.name,
                           string_literal(title_of(input)));
  }
  return fmt::format(
      "{}\n\nmoved = {{{}}}  # the inputs whose gradients are wanted, and what the file calls them"
      "\n\n\ndef named_inputs():\n    {} = inputs()\n    return {{{}}}\n\n\ndef "
      "objective(losses):\n{}    return J\n\n\ndef truth():\n    return measured\n",
      losses_at(program), moved, names_of(program.inputs), values,
      objective_line(truth_weights(program, repro.which.objective)));
}

}  // namespace distgrad
