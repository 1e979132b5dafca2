// The truth of a program that calls code of which only the ranks' forward run is known: central
// differences of that.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "model/objective.h"
#include "repro/program_facts.h"
#include "repro/python_text.h"
#include "repro/script_parts.h"

namespace distgrad {
namespace {

// As the ranks look at no more one by one, either (src/python/distgrad/ranks/differences.py).
constexpr std::size_t kMostElements = 256;

constexpr const char* kMeasure = R"(measured = []  # what measure() found


def measure(rank):
    """The truth: how the objective moves with each element, by central differences. All ranks move the same one."""
    $names = inputs()
    values = {$values}
    for name, value in values.items():
        local = isinstance(value, list)
        values[name] = [leaf(v, requires_grad=False) for v in value] if local else leaf(value, requires_grad=False)

    def objective():
        losses = losses_at(rank, **values)
$objective        return J

    def slope(flat, i):
        at, scale = flat[i].item(), max(flat[i].abs(), flat.square().mean().sqrt()).item() or 1.0
        for h in (scale * 2.0**-14, scale * 2.0**-20, scale * 2.0**-26):  # smaller ones where there is a kink between
            J = []
            for by in (h, -h, h / 4, -h / 4):
                flat[i] = at + by
                J.append(objective())
            flat[i] = at
            far, near = (J[0] - J[1]) / (2 * h), (J[2] - J[3]) / (h / 2)
            if abs(far - near) <= 1e-4 * abs(near) + 1e-12 * abs(J[0]) / h:
                break
        return (16 * near - far) / 15

    def slopes(value):
        if isinstance(value, list):
            return [slopes(of_rank) for of_rank in value]
        return torch.tensor([slope(value.view(-1), i) for i in range(value.numel())]).reshape(value.shape)

    losses = losses_at(rank, **values)
    measured[:] = losses, {$slopes}


def truth():
    return measured
)";

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
  if (!simulation.undecided.empty() || !simulation.undecided_elements.empty())
    throw UserError(what + (simulation.undecided.empty() ? simulation.undecided_elements.front().why
                                                         : simulation.undecided.front()));
  if (const std::size_t count = elements_of(simulation); count > kMostElements)
    throw UserError(fmt::format("{}it has {} elements, and more than {} take too long one by one",
                                what, count, kMostElements));
}

// The ranks' losses where the inputs have other values.
std::string losses_at(const Program& program) {
  std::string text = fmt::format(
      "def losses_at(rank{}):\n    \"\"\"The ranks' losses, in float64, where the inputs have "
      "these "
      "values.\"\"\"\n",
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

std::string indented_once_more(const std::string& lines) { return indented_python(lines, 1); }

void replace_word(std::string& text, const char* word, const std::string& by) {
  text.replace(text.find(word), std::string_view(word).size(), by);
}

}  // namespace

std::string measured_truth_part(const ReproCase& repro, const Program& program) {
  check_measurable(repro);
  std::vector<std::string> values, slopes;
  for (const Input& input : program.inputs) {
    values.push_back(fmt::format("\"{0}\": {0}", input.name));
    if (input.requires_grad)
      slopes.push_back(
          fmt::format("{}: slopes(values[\"{}\"])", string_literal(title_of(input)), input.name));
  }
  std::string text = kMeasure;
  replace_word(text, "$names", names_of(program.inputs));
  replace_word(text, "$values", fmt::format("{}", fmt::join(values, ", ")));
  replace_word(text, "$objective",
               indented_once_more(objective_line(truth_weights(program, repro.which.objective))));
  replace_word(text, "$slopes", fmt::format("{}", fmt::join(slopes, ", ")));
  return losses_at(program) + "\n\n" + text;
}

}  // namespace distgrad
