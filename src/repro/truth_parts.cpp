// Writes the truth, which runs the program of all ranks in one process, and the guards: what the
// file states beside it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "model/gradient_norm.h"
#include "model/objective.h"
#include "repro/call_text.h"
#include "repro/program_facts.h"
#include "repro/python_text.h"
#include "repro/script_parts.h"
#include "scenario/syntax.h"

namespace distgrad {
namespace {

// Returns whether the text is a name, a call or a subscript, which an attribute may follow.
bool binds_tightly(const std::string& text) {
  try {
    const Syntax::Kind kind = parse_expression(text)->kind;
    return kind == Syntax::Kind::kName || kind == Syntax::Kind::kCall ||
           kind == Syntax::Kind::kSubscript;
  } catch (const ExpressionError&) {
    return false;
  }
}

// Makes the leaves of one graph for all ranks, and `leaves`: by name, those that need gradients.
std::string leaf_lines(const Program& program) {
  std::string text = fmt::format("    {} = inputs()\n", names_of(program.inputs)), leaves;
  for (const Input& input : program.inputs) {
    const char* more = input.requires_grad ? "" : ", requires_grad=False";
    text += input.is_local()
                ? fmt::format("    {0} = [leaf(value{1}) for value in {0}]\n", input.name, more)
                : fmt::format("    {0} = leaf({0}{1})\n", input.name, more);
    if (input.requires_grad)
      leaves +=
          fmt::format("{}\"{}\": {}", leaves.empty() ? "" : ", ", title_of(input), input.name);
  }
  return text + fmt::format("    leaves = {{{}}}\n", leaves);
}

// Makes lists over the ranks of what each holds of the leaves.
std::string held_lines(const Program& program) {
  std::string text;
  for (const Input& input : program.inputs) {
    if (input.is_local()) continue;
    const std::string piece = held(program, input);
    text += piece == input.name
                ? fmt::format("    {0} = [{0}] * world_size\n", input.name)
                : fmt::format("    {} = [{} for rank in range(world_size)]\n", input.name, piece);
  }
  return text;
}

// Returns an expression's values on all ranks. `by_rank` names the variables that are such lists by
// then.
std::string values_by_rank(const std::string& expression, const std::vector<std::string>& by_rank) {
  if (std::find(by_rank.begin(), by_rank.end(), expression) != by_rank.end()) return expression;
  return "[" + expression + " " + over_ranks(expression, by_rank) + "]";
}

// Returns the step's values on all ranks. `code` is the function of a step that calls code.
std::string simulated_value(const Step& step, const std::string& code,
                            const std::vector<std::string>& by_rank) {
  if (step.code()) {
    std::vector<std::string> arguments;
    for (const std::string& text : expressions_of(step))
      arguments.push_back(values_by_rank(text, by_rank));
    return fmt::format("plainly({})({})", code, fmt::join(arguments, ", "));
  }
  const std::string expression = texts_of(step);
  const CollectiveCall* call = step.collective();
  if (!call) return "[" + expression + " " + over_ranks(expression, by_rank) + "]";
  const std::string operands = values_by_rank(expression, by_rank);
  const std::string name = "simulated_" + std::string(traits(call->kind).name);
  const std::string arguments = operands + options_text(*call);
  return call->group.empty()
             ? fmt::format("{}({})", name, arguments)
             : fmt::format("by_group(groups[\"{}\"], {}, {})", call->group, name, arguments);
}

}  // namespace

std::string objective_line(const std::vector<double>& weights) {
  const auto count = [&](double value) {
    return static_cast<std::size_t>(std::count(weights.begin(), weights.end(), value));
  };
  const std::size_t n = weights.size();
  if (count(1) == n) return "    J = sum(losses)\n";
  if (count(1.0 / static_cast<double>(n)) == n) return "    J = sum(losses) / world_size\n";
  if (count(1) == 1 && count(0) + 1 == n)
    return fmt::format("    J = losses[{}]\n",
                       std::find(weights.begin(), weights.end(), 1.0) - weights.begin());
  return fmt::format("    J = sum(weight * loss for weight, loss in zip({}, losses) if weight)\n",
                     list_literal(weights));
}

std::string truth_part(const ReproCase& repro, const Program& program) {
  if (needs_differences(program.steps)) return measured_truth_part(repro, program);
  std::string text =
      "def truth():\n    \"\"\"The same program in one process: every value is a list over the "
      "ranks, and autograd sees them all.\"\"\"\n" +
      leaf_lines(program) + held_lines(program);
  std::vector<std::string> by_rank;
  for (const Input& input : program.inputs) by_rank.push_back(input.name);
  for (const std::string& name : group_names_used(program, expressions_of(program))) {
    text += fmt::format("    {} = [{} for rank in range(world_size)]\n", name,
                        group_value(*group_of_name(program, name), name));
    by_rank.push_back(name);
  }
  if (has_code(program.steps)) text += "    seed(0)\n";
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    const std::string code =
        step.code() ? repro.foreign.functions.at(repro.program.steps[i].name).simulate : "";
    text += fmt::format("    {} = {}\n", step.name, simulated_value(step, code, by_rank));
    by_rank.push_back(step.name);
  }
  const auto inner = inner_of_gradient_norm(program.loss.text);
  const std::string& loss = inner ? *inner : program.loss.text;
  text += fmt::format("    losses = [{}.reshape(()) {}]\n",
                      binds_tightly(loss) ? loss : "(" + loss + ")", over_ranks(loss, by_rank));
  if (inner) text += "    losses = squared_gradient_norms(losses, leaves.values())\n";
  text += objective_line(truth_weights(program, repro.which.objective));
  text += depend_on_gradient(program).back() && !may_part_ways(program) && !inner
              ? "    J.backward()\n"
              : "    if J.requires_grad:\n        J.backward()\n";
  return text +
         "    return [loss.item() for loss in losses], {name: gradient(leaf) for name, leaf in "
         "leaves.items()}\n";
}

namespace {

bool has_finding(const ReproCase& repro, std::string_view rule) {
  return std::any_of(repro.result.findings.begin(), repro.result.findings.end(),
                     [&](const Finding& f) { return f.rule.text() == rule; });
}

double largest(const std::vector<Gradient>& bounds, const std::string& input) {
  double most = 0;
  for (const Gradient& g : bounds)
    if (g.input == input)
      for (const auto& part : g.parts)
        for (const double b : part ? part->values() : std::span<const double>())
          most = std::max(most, b);
  return most;
}

// Yields rows that compare each gradient with that of `other` (Python, by input), called `where`.
std::string guard_rows(const ReproCase& repro, const Program& program, const std::string& other,
                       const char* where, const std::vector<std::string>& inputs) {
  std::string text;
  for (const Input& input : program.inputs) {
    if (std::find(inputs.begin(), inputs.end(), title_of(input)) == inputs.end()) continue;
    const std::string name = string_literal(title_of(input));
    const std::string bound =
        number_literal(largest(repro.simulation.bounds, title_of(input)) +
                       largest(repro.simulation.single_bounds, title_of(input)));
    text += input.is_local() ? fmt::format(
                                   "    for rank in range(world_size):\n        yield {0}, f\"{1}, "
                                   "rank {{rank}}\", true[{0}][rank], {2}[{0}][rank], {3}\n",
                                   name, where, other, bound)
                             : fmt::format("    yield {0}, \"{1}\", true[{0}], {2}[{0}], {3}\n",
                                           name, where, other, bound);
  }
  return text;
}

std::string one_device(const Program& program) {
  const SingleDevice& single = *program.single_device;
  std::string text = "def one_device():\n    \"\"\"The program as it was on one device.\"\"\"\n" +
                     leaf_lines(program);
  std::vector<std::string> texts;
  for (const Step& step : single.steps) texts.push_back(texts_of(step));
  texts.push_back(single.loss.text);
  for (const std::string& name :
       group_names_used(program, texts))  // only sizes, as ranks have no name here
    text += fmt::format("    {} = {}\n", name, group_of_name(program, name)->partition[0].size());
  for (const Step& step : single.steps)
    text += fmt::format("    {} = {}\n", step.name, texts_of(step));
  return text + fmt::format(
                    "    loss = {}\n    loss.backward()\n    return loss.item(), {{name: "
                    "gradient(leaf) for name, leaf in leaves.items()}}\n",
                    single.loss.text);
}

// Compares the loss and the gradients with those of the one-device program.
std::string one_device_guards(const ReproCase& repro, const Program& program) {
  double bound = repro.simulation.single_loss_bound +
                 1e-14 * std::abs(repro.simulation.single_loss.value_or(0));
  for (const double b : repro.simulation.loss_bounds) bound += b;
  std::string text = one_device(program);
  text +=
      "\n\ndef guards(losses, true):\n    \"\"\"The distributed program (as observed) beside the "
      "one-device program (as truth).\"\"\"\n    loss, single = one_device()\n";
  text += fmt::format("    J = sum(weight * loss for weight, loss in zip({}, losses))\n",
                      list_literal(truth_weights(program, repro.which.objective)));
  text +=
      fmt::format("    yield \"loss\", \"one device\", torch.tensor(J), torch.tensor(loss), {}\n",
                  number_literal(bound));
  std::vector<std::string> names;
  for (const Input& input : program.inputs)
    if (input.requires_grad) names.push_back(title_of(input));
  return text + guard_rows(repro, program, "single", "one device", names);
}

// Compares with the file's truth in numbers, as the simulator evaluated it.
std::string file_truth(const ReproCase& repro, const Program& program) {
  std::string text =
      "def guards(losses, true):\n    \"\"\"What the program gives (as observed) beside the truth "
      "that its file states.\"\"\"\n    stated = {}\n";
  std::vector<std::string> names;
  for (const Gradient& g : repro.simulation.file_truth) {
    const auto input = std::find_if(repro.program.inputs.begin(), repro.program.inputs.end(),
                                    [&](const Input& i) { return i.name == g.input; });
    if (input == repro.program.inputs.end()) continue;
    names.push_back(input->name);
    std::string values;
    for (const auto& part : g.parts) values += (values.empty() ? "" : ", ") + tensor_literal(*part);
    text += fmt::format("    stated[{}] = {}\n", string_literal(names.back()),
                        input->is_local() ? "[" + values + "]" : values);
  }
  return text + guard_rows(repro, program, "stated", "stated", names);
}

}  // namespace

std::string guards_part(const ReproCase& repro, const Program& program) {
  if (program.single_device && has_finding(repro, "program"))
    return one_device_guards(repro, program);
  return has_finding(repro, "truth") ? file_truth(repro, program) : "";
}

}  // namespace distgrad
