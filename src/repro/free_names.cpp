// Renames those of the user's names that the script needs itself.
#include <algorithm>
#include <set>

#include "repro/python_source.h"
#include "repro/python_text.h"
#include "repro/repro.h"
#include "repro/script_parts.h"
#include "scenario/syntax.h"
#include "scenario/syntax_text.h"

namespace distgrad {
namespace {

void substitute(Expression& expression, const std::string& name, const std::string& by) {
  if (free_names_in(expression.text).contains(name))
    expression.text =
        text_of(*substituted(*parse_expression(expression.text), name, *parse_expression(by)));
}

}  // namespace

const std::set<std::string>& script_names() {
  static const std::set<std::string> names = [] {
    std::set<std::string> all = {"J",
                                 "bound",
                                 "connect",
                                 "dist",
                                 "dtype",
                                 "functools",
                                 "groups",
                                 "guards",
                                 "inputs",
                                 "leaves",
                                 "loss",
                                 "losses",
                                 "losses_at",
                                 "math",
                                 "moved",
                                 "mp",
                                 "named_inputs",
                                 "objective",
                                 "observed",
                                 "one_device",
                                 "os",
                                 "process_groups",
                                 "program",
                                 "random",
                                 "rows",
                                 "run",
                                 "sys",
                                 "time",
                                 "truth"};
    for (const Definition& definition : definitions()) all.insert(definition.name);
    for (const CollectiveTraits& kind : kCollectives) all.insert(camel_case(kind.name));
    return all;
  }();
  return names;
}

namespace {

std::string free_name(std::string name, const Program& program) {
  const auto taken = [&](const std::string& n) {
    const auto is = [&](const auto& thing) { return thing.name == n; };
    return std::any_of(program.inputs.begin(), program.inputs.end(), is) ||
           std::any_of(program.steps.begin(), program.steps.end(), is) ||
           std::any_of(program.groups.begin(), program.groups.end(), is);
  };
  do name += '_';
  while (taken(name) || script_names().contains(name));
  return name;
}

void rename(Program& program, const std::string& name, const std::string& by) {
  for (Step& step : program.steps) {
    if (step.name == name) step.name = by;
    if (auto* call = std::get_if<CollectiveCall>(&step.what))
      substitute(call->operand, name, by);
    else if (auto* code = std::get_if<CodeCall>(&step.what))
      for (Expression& argument : code->arguments) substitute(argument, name, by);
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

}  // namespace

Program with_free_names(Program program) {
  for (std::size_t i = 0; i < program.inputs.size(); ++i)
    if (const std::string name = program.inputs[i].name; script_names().contains(name)) {
      program.inputs[i].name = free_name(name, program);
      rename(program, name, program.inputs[i].name);
    }
  for (std::size_t i = 0; i < program.steps.size(); ++i)
    if (const std::string name = program.steps[i].name; script_names().contains(name))
      rename(program, name, free_name(name, program));
  return program;
}

}  // namespace distgrad
