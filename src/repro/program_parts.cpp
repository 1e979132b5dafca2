// The program: on one rank for real, and once more on all ranks in one process.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "expression/syntax.h"
#include "expression/syntax_text.h"
#include "gradients/assemble.h"
#include "model/objective.h"
#include "model/subject_text.h"
#include "repro/python_text.h"
#include "repro/script_parts.h"

namespace distgrad {
namespace {

// What the script calls by name where the user's names count.
const std::set<std::string>& reserved() {
  static const std::set<std::string> names = {"os",       "dist",         "mp",
                                              "dtype",    "inputs",       "leaf",
                                              "program",  "observed",     "truth",
                                              "rows",     "shown",        "report",
                                              "main",     "start",        "process_groups",
                                              "gathered", "exchanged",    "attached",
                                              "Meeting",  "drawn",        "shard",
                                              "by_group", "put_together", "ranks_with",
                                              "leaves",   "losses",       "loss",
                                              "J",        "one_device",   "bound",
                                              "groups",   "gradient",     "connect",
                                              "run",      "guards"};
  return names;
}

// As the file has it, and the table shows it.
std::string title_of(const Input& input) {
  const std::string name = input.pointer.substr(input.pointer.rfind('/') + 1);
  return name.empty() ? input.name : name;
}

std::string free_name(std::string name, const Program& program) {
  const auto taken = [&](const std::string& n) {
    const auto is = [&](const auto& thing) { return thing.name == n; };
    return std::any_of(program.inputs.begin(), program.inputs.end(), is) ||
           std::any_of(program.steps.begin(), program.steps.end(), is) ||
           std::any_of(program.groups.begin(), program.groups.end(), is);
  };
  do name += '_';
  while (taken(name) || reserved().contains(name));
  return name;
}

void substitute(Expression& expression, const std::string& name, const std::string& by) {
  if (free_names_in(expression.text).contains(name))
    expression.text =
        text_of(*substituted(*parse_expression(expression.text), name, *parse_expression(by)));
}

void rename(Program& program, const std::string& name, const std::string& by) {
  for (Step& step : program.steps) {
    if (step.name == name) step.name = by;
    if (auto* call = std::get_if<CollectiveCall>(&step.what))
      substitute(call->operand, name, by);
    else
      substitute(std::get<Expression>(step.what), name, by);
  }
  substitute(program.loss, name, by);
  if (!program.single_device) return;
  for (Step& step : program.single_device->steps) {
    if (step.name == name) step.name = by;
    substitute(std::get<Expression>(step.what), name, by);
  }
  substitute(program.single_device->loss, name, by);
}

const std::string& text_of_step(const Step& step) {
  const CollectiveCall* call = step.collective();
  return call ? call->operand.text : std::get<Expression>(step.what).text;
}

std::vector<std::string> expressions_of(const Program& program) {
  std::vector<std::string> texts;
  for (const Step& step : program.steps) texts.push_back(text_of_step(step));
  texts.push_back(program.loss.text);
  return texts;
}

const Group* group_of_name(const Program& program, const std::string& name) {
  for (const Group& group : program.groups)
    if (name == group.name + "_rank" || name == group.name + "_size") return &group;
  return nullptr;
}

std::string group_value(const Group& group, const std::string& name) {
  return name.ends_with("_rank")
             ? fmt::format("ranks_with(groups[\"{}\"], rank).index(rank)", group.name)
             : fmt::format("len(ranks_with(groups[\"{}\"], rank))", group.name);
}

std::string names_of(const std::vector<Input>& inputs, const char* before = "") {
  std::string names;
  for (const Input& input : inputs) names += (names.empty() ? before : ", ") + input.name;
  return names;
}

// The input `name` as `rank` holds it, from the whole: "shard(w, 0, rank, world_size)".
std::string held(const Program& program, const Input& input) {
  std::string text = input.name;
  for (const AxisLayout& axis : input.layout) {
    if (axis.layout.kind != Layout::Kind::kShard) continue;
    const Group* group = axis.axis.empty() ? nullptr : program.group_named(axis.axis);
    text = group ? fmt::format("shard({}, {}, {}, {})", text, axis.layout.dim,
                               group_value(*group, "_rank"), group->partition[0].size())
                 : fmt::format("shard({}, {}, rank, world_size)", text, axis.layout.dim);
  }
  return text;
}

// The collectives whose value the loss depends on, by name.
std::vector<std::string> reached_steps(const Program& program) {
  std::set<std::string> reached = free_names_in(program.loss.text);
  std::vector<std::string> steps;
  for (auto step = program.steps.rbegin(); step != program.steps.rend(); ++step) {
    if (!reached.contains(step->name)) continue;
    if (step->collective()) steps.insert(steps.begin(), step->name);
    reached.merge(free_names_in(text_of_step(*step)));
  }
  return steps;
}

bool has_choice(const Syntax& node) {
  using Kind = Syntax::Kind;
  if (node.kind == Kind::kConditional ||
      (node.kind == Kind::kComprehension && node.children.size() > 2))
    return true;
  if (node.kind == Kind::kAttribute && (node.text == "detach" || node.text == "item")) return true;
  if (node.kind == Kind::kSubscript && node.children[0]->kind == Kind::kList) return true;
  for (const SyntaxPtr& child : node.children)
    if (child && has_choice(*child)) return true;
  return std::any_of(node.keywords.begin(), node.keywords.end(),
                     [](const auto& k) { return has_choice(*k.second); });
}

// A name or a call, behind which an attribute may stand.
bool binds_tightly(const std::string& text) {
  try {
    const Syntax::Kind kind = parse_expression(text)->kind;
    return kind == Syntax::Kind::kName || kind == Syntax::Kind::kCall ||
           kind == Syntax::Kind::kSubscript;
  } catch (const ExpressionError&) {
    return false;
  }
}

// Whether the loss's expressions lead back to an input that requires grad.
bool depends_on_gradient(const Program& program) {
  std::set<std::string> on_gradient;
  for (const Input& input : program.inputs)
    if (input.requires_grad) on_gradient.insert(input.name);
  const auto leads = [&](const std::string& text) {
    const std::set<std::string> used = free_names_in(text);
    return std::any_of(used.begin(), used.end(),
                       [&](const std::string& n) { return on_gradient.contains(n); });
  };
  for (const Step& step : program.steps)
    if (leads(text_of_step(step))) on_gradient.insert(step.name);
  return leads(program.loss.text);
}

// Every rank's loss has a backward, whatever the subject makes of the graph.
bool is_always_differentiable(const ReproCase& repro, const Program& program) {
  return depends_on_gradient(program) && !may_part_ways(program) && repro.calls.empty() &&
         repro.which.subject.find("in_place") == std::string::npos;
}

bool all_ones(const std::vector<double>& weights) {
  return std::all_of(weights.begin(), weights.end(), [](double w) { return w == 1; });
}

// The input's sync, after backward.
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

}  // namespace

Program with_free_names(Program program) {
  for (std::size_t i = 0; i < program.inputs.size(); ++i)
    if (const std::string name = program.inputs[i].name; reserved().contains(name)) {
      program.inputs[i].name = free_name(name, program);
      rename(program, name, program.inputs[i].name);
    }
  for (std::size_t i = 0; i < program.steps.size(); ++i)
    if (const std::string name = program.steps[i].name; reserved().contains(name))
      rename(program, name, free_name(name, program));
  return program;
}

bool may_part_ways(const Program& program) {
  const std::vector<std::string> texts = expressions_of(program);
  return std::any_of(texts.begin(), texts.end(), [](const std::string& text) {
    try {
      return has_choice(*parse_expression(text));
    } catch (const ExpressionError&) {
      return true;
    }
  });
}

std::string over_ranks(const std::string& expression, const std::vector<std::string>& by_rank) {
  const std::set<std::string> used = free_names_in(expression);
  std::vector<std::string> names;
  for (const std::string& name : by_rank)
    if (used.contains(name)) names.push_back(name);
  const bool rank = used.contains("rank");
  if (names.empty()) return fmt::format("for {} in range(world_size)", rank ? "rank" : "_");
  const std::string joined = fmt::format("{}", fmt::join(names, ", "));
  if (names.size() == 1)
    return rank ? fmt::format("for rank, {0} in enumerate({0})", joined)
                : fmt::format("for {0} in {0}", joined);
  return rank ? fmt::format("for rank, ({0}) in enumerate(zip({0}))", joined)
              : fmt::format("for {0} in zip({0})", joined);
}

std::vector<std::string> group_names_used(const Program& program,
                                          const std::vector<std::string>& expressions) {
  std::set<std::string> used;
  for (const std::string& text : expressions) used.merge(free_names_in(text));
  std::vector<std::string> names;
  for (const std::string& name : used)
    if (group_of_name(program, name)) names.push_back(name);
  return names;
}

std::string program_part(const Program& program, const CollectiveParts& parts, bool attach) {
  std::string text =
      fmt::format("def program(rank{}):\n    \"\"\"What every rank runs; its loss.\"\"\"\n",
                  names_of(program.inputs, ", "));
  for (const std::string& name : group_names_used(program, expressions_of(program)))
    text += fmt::format("    {} = {}\n", name, group_value(*group_of_name(program, name), name));
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    text += fmt::format("    {} = {}\n", step.name,
                        step.collective() ? parts.calls[i] : text_of_step(step));
  }
  const std::vector<std::string> reached = reached_steps(program);
  if (!attach || reached.empty()) return text + "    return " + program.loss.text + "\n";
  return text + fmt::format("    return Meeting.apply({}, {})\n", program.loss.text,
                            fmt::join(reached, ", "));
}

std::string observed_part(const ReproCase& repro, const Program& program) {
  std::string text =
      "def observed(rank):\n    \"\"\"A rank's loss, and the gradients that its backward "
      "leaves.\"\"\"\n";
  text += fmt::format("    {} = inputs()\n", names_of(program.inputs));
  for (const Input& input : program.inputs)
    text += fmt::format("    {} = leaf({}, dtype{})\n", input.name,
                        input.is_local() ? input.name + "[rank]" : held(program, input),
                        input.requires_grad ? "" : ", requires_grad=False");
  const bool narrow = program.dtype != DType::kFloat64;
  if (narrow) text += "    torch.set_default_dtype(dtype)\n";
  text += fmt::format("    loss = program(rank{})\n", names_of(program.inputs, ", "));
  const Objective& objective = repro.which.objective;
  const bool reference = is_reference(repro.which.subject);
  const std::vector<double> weights = backward_weights(program, objective, reference);
  std::string backward = fmt::format("(loss * {}[rank]).backward()", list_literal(weights));
  const bool divided = std::all_of(weights.begin(), weights.end(),
                                   [&](double w) { return w == 1.0 / program.world_size; });
  if (all_ones(weights))
    backward = "loss.backward()";
  else if (divided)
    backward = "(loss / world_size).backward()";
  text += is_always_differentiable(repro, program)
              ? "    " + backward + "\n"
              : "    if loss.requires_grad:\n        " + backward + "\n";
  if (narrow) text += "    torch.set_default_dtype(torch.float64)\n";
  const std::vector<double> divisors = leftover_divisors(program, objective, reference);
  std::string gradients;
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    const Input& input = program.inputs[i];
    if (!input.requires_grad) continue;
    text += after_backward(program, input);
    std::string gradient = input.name + ".grad";
    if (divisors[i] != 1) {  // another input's sync divides, so that the loss does not
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

std::string truth_part(const ReproCase& repro, const Program& program,
                       const CollectiveParts& parts) {
  std::string text =
      "def truth():\n    \"\"\"The same program in one process: every value is a list over the "
      "ranks, and autograd sees them all.\"\"\"\n";
  text += fmt::format("    {} = inputs()\n", names_of(program.inputs));
  std::string leaves;
  std::vector<std::string> by_rank;
  for (const Input& input : program.inputs) {
    const char* more = input.requires_grad ? "" : ", requires_grad=False";
    text += input.is_local()
                ? fmt::format("    {0} = [leaf(value{1}) for value in {0}]\n", input.name, more)
                : fmt::format("    {0} = leaf({0}{1})\n", input.name, more);
    if (input.requires_grad)
      leaves +=
          fmt::format("{}\"{}\": {}", leaves.empty() ? "" : ", ", title_of(input), input.name);
    by_rank.push_back(input.name);
  }
  text += fmt::format("    leaves = {{{}}}\n", leaves);
  for (const Input& input : program.inputs) {
    if (input.is_local()) continue;
    const std::string piece = held(program, input);
    text += piece == input.name
                ? fmt::format("    {0} = [{0}] * world_size\n", input.name)
                : fmt::format("    {} = [{} for rank in range(world_size)]\n", input.name, piece);
  }
  const std::vector<std::string> groups = group_names_used(program, expressions_of(program));
  for (const std::string& name : groups) {
    text += fmt::format("    {} = [{} for rank in range(world_size)]\n", name,
                        group_value(*group_of_name(program, name), name));
    by_rank.push_back(name);
  }
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    const std::string& expression = text_of_step(step);
    std::string value = "[" + expression + " " + over_ranks(expression, by_rank) + "]";
    if (const CollectiveCall* call = step.collective()) {
      if (std::find(by_rank.begin(), by_rank.end(), expression) != by_rank.end())
        value = expression;
      value = call->group.empty() ? fmt::format("{}({})", parts.simulated[i], value)
                                  : fmt::format("by_group(groups[\"{}\"], {}, {})", call->group,
                                                parts.simulated[i], value);
    }
    text += fmt::format("    {} = {}\n", step.name, value);
    by_rank.push_back(step.name);
  }
  const bool plain = binds_tightly(program.loss.text);
  text += fmt::format("    losses = [{}{}{}.reshape(()) {}]\n", plain ? "" : "(", program.loss.text,
                      plain ? "" : ")", over_ranks(program.loss.text, by_rank));
  const std::vector<double> weights = truth_weights(program, repro.which.objective);
  const bool mean = std::all_of(weights.begin(), weights.end(),
                                [&](double w) { return w == 1.0 / program.world_size; });
  if (all_ones(weights))
    text += "    J = sum(losses)\n";
  else if (mean)
    text += "    J = sum(losses) / world_size\n";
  else if (std::count(weights.begin(), weights.end(), 0.0) + 1 == program.world_size &&
           std::count(weights.begin(), weights.end(), 1.0) == 1)
    text += fmt::format("    J = losses[{}]\n",
                        std::find(weights.begin(), weights.end(), 1.0) - weights.begin());
  else
    text +=
        fmt::format("    J = sum(weight * loss for weight, loss in zip({}, losses) if weight)\n",
                    list_literal(weights));
  text += depends_on_gradient(program) && !may_part_ways(program)
              ? "    J.backward()\n"
              : "    if J.requires_grad:\n        J.backward()\n";
  text +=
      "    return [loss.item() for loss in losses], {name: gradient(leaf) for name, leaf in "
      "leaves.items()}\n";
  return text;
}

std::string rows_part(const ReproCase& repro, const Program& program) {
  std::string text =
      "def rows(gradients, true):\n"
      "    \"\"\"What is compared: input, where, observed (of `gradients` by rank), the truth, the "
      "bound on the rounding error.\"\"\"\n";
  bool any = false;
  std::size_t g = 0;
  for (const Input& input : program.inputs) {
    if (!input.requires_grad) continue;
    // Of a case that fails there is no comparison; the truth is known all the same.
    const std::string bound =
        number_literal(g < repro.result.gradients.size() ? repro.result.gradients[g].bound : 0.0);
    const std::optional<Array>& whole = repro.simulation.gradients.at(0).at(g).parts.at(0);
    ++g;
    any = true;
    const std::string name = string_literal(title_of(input));
    if (input.is_local()) {
      text += fmt::format(
          "    for rank in range(world_size):\n        yield {0}, f\"rank {{rank}}\", "
          "gradients[rank][{0}], true[{0}][rank], {1}\n",
          name, bound);
      continue;
    }
    const Shape full = whole ? whole->shape() : Shape{};
    const GradientByRank none(static_cast<std::size_t>(program.world_size));
    const std::vector<Part> joined = assemble(program, input, full, none);
    const bool alone = std::all_of(joined.begin(), joined.end(),
                                   [](const Part& p) { return p.ranks.size() == 1; });
    if (alone && joined.size() == static_cast<std::size_t>(program.world_size) &&
        joined[0].pieces.at(0).extent == full) {
      text += fmt::format(
          "    for rank in range(world_size):\n        yield {0}, f\"rank {{rank}}\", "
          "gradients[rank][{0}], true[{0}], {1}\n",
          name, bound);
      continue;
    }
    for (const Part& part : joined) {
      std::vector<std::string> pieces;
      for (const Piece& piece : part.pieces) {
        std::string place;
        for (std::size_t d = 0; piece.extent != full && d < full.size(); ++d)
          place += fmt::format("slice({}, {}), ", piece.start[d], piece.start[d] + piece.extent[d]);
        pieces.push_back(fmt::format("([{}], ({}))", fmt::join(piece.ranks, ", "), place));
      }
      const char* where = part.pieces.size() > 1  ? "joined"
                          : part.ranks.size() > 1 ? "summed"
                                                  : "alone";
      text += fmt::format(
          "    pieces = [{}]\n    yield {}, \"{}\", put_together(pieces, [of_rank[{}] for of_rank "
          "in gradients], true[{}]), true[{}], {}\n",
          fmt::join(pieces, ", "), name, where, name, name, name, bound);
    }
  }
  if (!any) text += "    return []\n";
  return text;
}

namespace {

bool has_finding(const ReproCase& repro, std::string_view rule) {
  return std::any_of(repro.result.findings.begin(), repro.result.findings.end(),
                     [&](const Finding& f) { return f.rule == rule; });
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

// Yields rows for each gradient of `other` (Python, by input), called `where`.
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

std::string one_device(const ReproCase& repro, const Program& program) {
  std::string text = "def one_device():\n    \"\"\"The program as it was on one device.\"\"\"\n";
  text += fmt::format("    {} = inputs()\n", names_of(program.inputs));
  std::string leaves;
  for (const Input& input : program.inputs) {
    const char* more = input.requires_grad ? "" : ", requires_grad=False";
    text += input.is_local()
                ? fmt::format("    {0} = [leaf(value{1}) for value in {0}]\n", input.name, more)
                : fmt::format("    {0} = leaf({0}{1})\n", input.name, more);
    if (input.requires_grad)
      leaves +=
          fmt::format("{}\"{}\": {}", leaves.empty() ? "" : ", ", title_of(input), input.name);
  }
  text += fmt::format("    leaves = {{{}}}\n", leaves);
  std::vector<std::string> texts;
  for (const Step& step : program.single_device->steps)
    texts.push_back(std::get<Expression>(step.what).text);
  texts.push_back(program.single_device->loss.text);
  for (const std::string& name :
       group_names_used(program, texts))  // sizes: ranks have no name here
    text += fmt::format("    {} = {}\n", name, group_of_name(program, name)->partition[0].size());
  for (const Step& step : program.single_device->steps)
    text += fmt::format("    {} = {}\n", step.name, std::get<Expression>(step.what).text);
  text += fmt::format(
      "    loss = {}\n    loss.backward()\n    return loss.item(), {{name: gradient(leaf) for "
      "name, leaf in leaves.items()}}\n",
      program.single_device->loss.text);
  std::vector<std::string> names;
  for (const Input& input : program.inputs)
    if (input.requires_grad) names.push_back(title_of(input));
  text +=
      "\n\ndef guards(losses, true):\n    \"\"\"The distributed program (as observed) beside the "
      "one-device program (as truth).\"\"\"\n    loss, single = one_device()\n";
  text += fmt::format("    J = sum(weight * loss for weight, loss in zip({}, losses))\n",
                      list_literal(truth_weights(program, repro.which.objective)));
  double bound = repro.simulation.single_loss_bound +
                 1e-14 * std::abs(repro.simulation.single_loss.value_or(0));
  for (const double b : repro.simulation.loss_bounds) bound += b;
  text +=
      fmt::format("    yield \"loss\", \"one device\", torch.tensor(J), torch.tensor(loss), {}\n",
                  number_literal(bound));
  return text + guard_rows(repro, program, "single", "one device", names);
}

// The file's truth in numbers, as the simulator evaluated it.
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
  if (program.single_device && has_finding(repro, "program")) return one_device(repro, program);
  return has_finding(repro, "truth") ? file_truth(repro, program) : "";
}

}  // namespace distgrad
