// Writes the program of one rank in the real run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "model/gradient_norm.h"
#include "model/objective.h"
#include "model/subject_text.h"
#include "repro/program_facts.h"
#include "repro/python_text.h"
#include "repro/script_parts.h"

namespace distgrad {
namespace {

// Returns whether every rank's loss has a backward, whatever the subject makes of the graph.
bool is_always_differentiable(const ReproCase& repro, const Program& program) {
  return depend_on_gradient(program).back() && !may_part_ways(program) &&
         !inner_of_gradient_norm(program.loss.text) && repro.foreign.calls.empty() &&
         !has_code(program.steps) &&
         std::ranges::none_of(parts_of(repro.which.subject), &SubjectPart::is_in_place);
}

// Writes the input's sync, which runs after backward.
std::string after_backward(const Program& program, const Input& input) {
  std::string text;
  const auto all_reduce = [&](const std::string& group, std::size_t size, bool mean) {
    text += fmt::format("    dist.all_reduce({}.grad{})\n", input.name, group);
    if (mean) text += fmt::format("    {}.grad /= {}\n", input.name, size);
  };
  if (!input.sync.empty())
    text += fmt::format("    if {0}.grad is None:\n        {0}.grad = torch.zeros_like({0})\n",
                        input.name);
  for (const auto& [axis, how] : input.sync) {
    const bool mean = how == Input::Sync::kMean;
    const Group* group = axis.empty() ? nullptr : program.group_named(axis);
    if (group)
      all_reduce(fmt::format(", group=process_groups[\"{}\"]", axis), group->partition[0].size(),
                 mean);
    else
      all_reduce("", static_cast<std::size_t>(program.world_size), mean);
  }
  return text;
}

// Writes the call of backward on the loss with the weight that the rank gives it.
std::string backward_call(const std::vector<double>& weights, int world_size) {
  const auto all_are = [&](double value) {
    return std::all_of(weights.begin(), weights.end(), [&](double w) { return w == value; });
  };
  if (all_are(1)) return "loss.backward()";
  if (all_are(1.0 / world_size)) return "(loss / world_size).backward()";
  return fmt::format("(loss * {}[rank]).backward()", list_literal(weights));
}

// Writes the forward run in the subject's mode. Under a checkpoint the program runs again in
// backward, where other code has set the default dtype.
std::string forward_lines(const ReproCase::Foreign& foreign, const std::string& arguments) {
  const std::string program = foreign.has_code() ? "default_dtype(dtype)(program)" : "program";
  if (foreign.mode == "autocast")
    return fmt::format("    with torch.autocast(\"cpu\", torch.bfloat16):\n        loss = {}({})\n",
                       program, arguments);
  if (foreign.mode.starts_with("checkpoint"))
    return fmt::format("    loss = torch.utils.checkpoint.checkpoint({}, {}, use_reentrant={})\n",
                       program, arguments, foreign.mode == "checkpoint" ? "False" : "True");
  return fmt::format("    loss = {}({})\n", program, arguments);
}

// Makes the rank's leaves from inputs().
std::string leaves_of_rank(const Program& program) {
  std::string text = fmt::format("    {} = inputs()\n", names_of(program.inputs));
  for (const Input& input : program.inputs)
    text += fmt::format("    {} = leaf({}, dtype{})\n", input.name,
                        input.is_local() ? input.name + "[rank]" : held(program, input),
                        input.requires_grad ? "" : ", requires_grad=False");
  return text;
}

// Leads backward through every collective that the loss depends on, where it might miss one.
std::string led_by_all(const std::string& loss, const std::vector<std::string>& reached,
                       bool attach) {
  if (!attach || reached.empty()) return loss;
  return fmt::format("Meeting.apply({}, {})", loss, fmt::join(reached, ", "));
}

std::string loss_text(const Program& program, bool attach) {
  const std::vector<std::string> reached = reached_steps(program);
  const auto inner = inner_of_gradient_norm(program.loss.text);
  if (!inner) return led_by_all(program.loss.text, reached, attach);
  std::vector<std::string> leaves;
  for (const Input& input : program.inputs)
    if (input.requires_grad) leaves.push_back(input.name);
  const std::string norm =
      fmt::format("squared_gradient_norm({}, [{}])", led_by_all(*inner, reached, attach),
                  fmt::join(leaves, ", "));
  return led_by_all(norm, reached, attach);
}

// Writes a step that calls the user's code, which gets copies of what other steps see, as it may
// work in place.
std::string code_call(const ReproCase& repro, const Program& program, std::size_t i, bool attach) {
  std::map<std::string, bool>
      tensors;  // by name: whether it depends on an input that requires grad
  const std::vector<bool> on_gradient = depend_on_gradient(program);
  for (const Input& input : program.inputs) tensors[input.name] = input.requires_grad;
  for (std::size_t s = 0; s < i; ++s) tensors[program.steps[s].name] = on_gradient[s];
  std::vector<std::string> arguments;
  for (const std::string& text : expressions_of(program.steps[i])) {
    const auto tensor = tensors.find(text);
    if (tensor == tensors.end())
      arguments.push_back(text);
    else
      arguments.push_back((attach && tensor->second ? "attached(" + text + ")" : text) +
                          ".clone()");
  }
  const std::string& step = repro.program.steps[i].name;  // the name before any renaming
  return fmt::format("plainly({})({})", repro.foreign.functions.at(step).name,
                     fmt::join(arguments, ", "));
}

// Writes what happens to the gradients after backward, and the dict of them that is returned.
std::string gradients_of_rank(const Program& program, const std::vector<double>& divisors) {
  std::string text, gradients;
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    const Input& input = program.inputs[i];
    if (!input.requires_grad) continue;
    text += after_backward(program, input);
    std::string gradient = input.name + ".grad";
    if (divisors[i] != 1) {  // another input's sync divides, so the loss does not
      text += fmt::format(
          "    {0}_gradient = None if {0}.grad is None else {0}.grad.double() / {1}  # as the "
          "others' sync does\n",
          input.name, divisors[i]);
      gradient = input.name + "_gradient";
    }
    gradients +=
        fmt::format("{}\"{}\": {}", gradients.empty() ? "" : ", ", title_of(input), gradient);
  }
  return text + fmt::format("    return loss.item(), {{{}}}\n", gradients);
}

}  // namespace

std::string program_part(const ReproCase& repro, const Program& program,
                         const CollectiveParts& parts, bool attach) {
  std::string text =
      fmt::format("def program(rank{}):\n    \"\"\"What every rank runs; its loss.\"\"\"\n",
                  names_of(program.inputs, ", "));
  for (const std::string& name : group_names_used(program, expressions_of(program)))
    text += fmt::format("    {} = {}\n", name, group_value(*group_of_name(program, name), name));
  if (has_code(program.steps)) text += "    seed(rank)\n";
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    const std::string value = step.collective() ? parts.calls[i]
                              : step.code()     ? code_call(repro, program, i, attach)
                                                : texts_of(step);
    text += fmt::format("    {} = {}\n", step.name, value);
  }
  return text + "    return " + loss_text(program, attach) + "\n";
}

std::string observed_part(const ReproCase& repro, const Program& program) {
  const Objective& objective = repro.which.objective;
  const bool reference = divides_replicated(repro.which, program);
  const bool code = repro.foreign.has_code();
  const bool narrow = program.dtype != DType::kFloat64 && !code;
  std::string text =
      "def observed(rank):\n    \"\"\"A rank's loss, and the gradients that its backward "
      "leaves.\"\"\"\n" +
      leaves_of_rank(program);
  if (narrow) text += "    torch.set_default_dtype(dtype)\n";
  text += forward_lines(repro.foreign, "rank" + names_of(program.inputs, ", "));
  std::string backward =
      backward_call(backward_weights(program, objective, reference), program.world_size);
  if (code) backward = "plainly(" + backward.substr(0, backward.size() - 2) + ")()";
  text += is_always_differentiable(repro, program)
              ? "    " + backward + "\n"
              : "    if loss.requires_grad:\n        " + backward + "\n";
  if (narrow) text += "    torch.set_default_dtype(torch.float64)\n";
  return text + gradients_of_rank(program, post_sync_divisors(program, objective, reference));
}

}  // namespace distgrad
