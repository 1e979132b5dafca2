#include "repro/program_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "repro/python_text.h"
#include "scenario/syntax.h"

namespace distgrad {
namespace {

// Returns whether ranks may take different ways here, or a value may leave the graph.
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

std::set<std::string> names_in(const std::vector<std::string>& expressions) {
  std::set<std::string> names;
  for (const std::string& text : expressions) names.merge(free_names_in(text));
  return names;
}

}  // namespace

std::string title_of(const Input& input) {
  const std::string name = input.pointer.substr(input.pointer.rfind('/') + 1);
  return name.empty() ? input.name : name;
}

std::string names_of(const std::vector<Input>& inputs, const char* before) {
  std::string names;
  for (const Input& input : inputs) names += (names.empty() ? before : ", ") + input.name;
  return names;
}

std::vector<std::string> expressions_of(const Step& step) {
  if (!step.code()) return {texts_of(step)};
  std::vector<std::string> texts;
  for (const Expression& argument : step.code()->arguments) texts.push_back(argument.text);
  return texts;
}

std::vector<std::string> expressions_of(const Program& program) {
  std::vector<std::string> texts;
  for (const Step& step : program.steps)
    for (std::string& text : expressions_of(step)) texts.push_back(std::move(text));
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

std::vector<std::string> group_names_used(const Program& program,
                                          const std::vector<std::string>& expressions) {
  std::vector<std::string> names;
  for (const std::string& name : names_in(expressions))
    if (group_of_name(program, name)) names.push_back(name);
  return names;
}

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

std::vector<bool> depend_on_gradient(const Program& program) {
  std::set<std::string> names;
  for (const Input& input : program.inputs)
    if (input.requires_grad) names.insert(input.name);
  std::vector<bool> result;
  const auto add = [&](const std::vector<std::string>& expressions) {
    const std::set<std::string> used = names_in(expressions);
    result.push_back(
        std::any_of(used.begin(), used.end(), [&](const auto& n) { return names.contains(n); }));
  };
  for (const Step& step : program.steps) {
    add(expressions_of(step));
    if (result.back()) names.insert(step.name);
  }
  add({program.loss.text});
  return result;
}

std::vector<std::string> reached_steps(const Program& program) {
  std::set<std::string> reached = free_names_in(program.loss.text);
  std::vector<std::string> steps;
  for (auto step = program.steps.rbegin(); step != program.steps.rend(); ++step) {
    if (!reached.contains(step->name)) continue;
    if (step->collective()) steps.insert(steps.begin(), step->name);
    reached.merge(names_in(expressions_of(*step)));
  }
  return steps;
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

}  // namespace distgrad
