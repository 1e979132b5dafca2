#include "rank/compiled_program.h"

#include <algorithm>
#include <stdexcept>

#include "model/gradient_norm.h"

namespace distgrad {

c10::IValue CompiledText::value(const std::vector<c10::IValue>& values) const {
  std::vector<c10::IValue> arguments;
  arguments.reserve(slots.size());
  for (const int slot : slots) arguments.push_back(values[slot]);
  try {
    return code->value(std::move(arguments));
  } catch (const InvalidExpression& e) {
    throw InvalidAt(source->pointer, e.what(), e.caret());
  }
}

Scope rank_scope(const Program& program) {
  Scope scope{{"rank", NameType::kInt}, {"world_size", NameType::kInt}};
  for (const Group& group : program.groups) {
    scope.emplace(group.name + "_rank", NameType::kInt);
    scope.emplace(group.name + "_size", NameType::kInt);
  }
  return scope;
}

Scope size_scope(const Program& program) {
  Scope scope{{"world_size", NameType::kInt}};
  for (const Group& group : program.groups) {
    const auto& lists = group.partition;
    if (std::all_of(lists.begin(), lists.end(),
                    [&](const auto& l) { return l.size() == lists[0].size(); }))
      scope.emplace(group.name + "_size", NameType::kInt);
  }
  return scope;
}

std::int64_t value_of_name(const Program& program, const std::string& name, int rank) {
  if (name == "rank") return rank;
  if (name == "world_size") return program.world_size;
  for (const Group& group : program.groups) {
    const auto [list, place] = group.place_of(rank);
    if (name == group.name + "_rank") return place;
    if (name == group.name + "_size")
      return static_cast<std::int64_t>(group.partition[list].size());
  }
  throw std::logic_error("no such name: " + name);
}

at::Tensor evaluate_alone(const Program& program, const Expression& expression, const Scope& scope,
                          int rank, DType dtype, const std::map<std::string, c10::IValue>& more) {
  try {
    const auto code = compile_expression(expression.text, scope, dtype, NumberResult::kAccept);
    std::vector<c10::IValue> values;
    for (const std::string& name : code->names()) {
      const auto found = more.find(name);
      values.push_back(found != more.end() ? found->second
                                           : c10::IValue(value_of_name(program, name, rank)));
    }
    return code->evaluate(std::move(values));
  } catch (const InvalidExpression& e) {
    throw InvalidAt(expression.pointer, e.what(), e.caret());
  }
}

at::Tensor scalar_loss(const at::Tensor& loss, const Expression& text, int rank) {
  if (loss.numel() != 1) {
    std::string shape;
    for (const std::int64_t s : loss.sizes())
      shape += (shape.empty() ? "" : ", ") + std::to_string(s);
    throw InvalidAt(text.pointer, "the loss has " + std::to_string(loss.numel()) +
                                      " elements (shape [" + shape + "] on rank " +
                                      std::to_string(rank) +
                                      "); it must have one: take .sum() or .mean()");
  }
  const at::Tensor scalar = loss.dim() == 0 ? loss : loss.reshape({});
  return scalar.scalar_type() == at::kDouble ? scalar : scalar.to(at::kDouble);
}

std::optional<Expression> inner_of_gradient_norm(const Expression& loss) {
  try {
    const auto inner = inner_of_gradient_norm(loss.text);
    return inner ? std::optional(Expression{*inner, loss.pointer}) : std::nullopt;
  } catch (const std::invalid_argument& e) {
    throw InvalidAt(loss.pointer, e.what());
  }
}

CompiledProgram::CompiledProgram(const Program& p, DType dtype, bool may_call_code) : program(p) {
  for (const auto& [name, type] : rank_scope(program)) add(name, type);
  for (const Input& input : program.inputs)
    input_slots.push_back(add(input.name, NameType::kTensor));
  for (const Step& step : program.steps) {
    CompiledStep compiled_step;
    compiled_step.step = &step;
    const CollectiveCall* call = step.collective();
    if (const CodeCall* code = step.code()) {
      if (!may_call_code)
        throw InvalidAt(step.pointer, "a call of code runs on ranks in Python alone");
      for (const Expression& argument : code->arguments)
        compiled_step.arguments.push_back(compiled(argument, dtype, NumberResult::kKeep));
    } else {
      compiled_step.text = compiled(call ? call->operand : std::get<Expression>(step.what), dtype);
    }
    if (call && !call->group.empty()) compiled_step.group = program.group_named(call->group);
    compiled_step.slot = add(step.name, NameType::kTensor);
    steps.push_back(std::move(compiled_step));
  }
  if (auto inner = inner_of_gradient_norm(program.loss)) {
    if (has_code(program.steps))
      throw InvalidAt(program.loss.pointer,
                      "a program that calls code has no squared_gradient_norm");
    loss_is_gradient_norm = true;
    inner_loss_ = std::move(*inner);
  }
  loss = compiled(loss_is_gradient_norm ? inner_loss_ : program.loss, dtype);
  trace_dependencies();
}

int CompiledProgram::add(const std::string& name, NameType type) {
  scope_.emplace(name, type);
  return slot_of_.emplace(name, slot_count++).first->second;
}

CompiledText CompiledProgram::compiled(const Expression& expression, DType dtype,
                                       NumberResult numbers) const {
  CompiledText text;
  text.source = &expression;
  try {
    text.code = compile_expression(expression.text, scope_, dtype, numbers);
  } catch (const InvalidExpression& e) {
    throw InvalidAt(expression.pointer, e.what(), e.caret());
  }
  for (const std::string& name : text.code->names()) text.slots.push_back(slot_of_.at(name));
  return text;
}

// Returns the slots of all names that the step uses.
static std::vector<int> slots_of(const CompiledStep& step) {
  std::vector<int> slots = step.text.slots;
  for (const CompiledText& argument : step.arguments)
    slots.insert(slots.end(), argument.slots.begin(), argument.slots.end());
  return slots;
}

void CompiledProgram::trace_dependencies() {
  std::vector<bool> on_gradient(slot_count), reaches(slot_count);
  for (std::size_t i = 0; i < program.inputs.size(); ++i)
    on_gradient[input_slots[i]] = program.inputs[i].requires_grad;
  const auto depends = [&](const std::vector<int>& slots) {
    return std::ranges::any_of(slots, [&](int slot) { return on_gradient[slot]; });
  };
  for (CompiledStep& step : steps) {
    for (const CompiledText& argument : step.arguments)
      step.arguments_on_gradient.push_back(depends(argument.slots));
    on_gradient[step.slot] = step.depends_on_gradient = depends(slots_of(step));
  }
  for (const int slot : loss.slots) reaches[slot] = true;
  std::vector<bool> wanted = reaches;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    step->reaches_loss = reaches[step->slot];
    if (!step->reaches_loss) continue;
    for (const int slot : slots_of(*step)) reaches[slot] = true;
  }
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    std::vector<int> used = slots_of(*step);
    used.push_back(step->slot);
    for (const int slot : used) {
      if (!wanted[slot]) step->last_used.push_back(slot);
      wanted[slot] = true;
    }
  }
}

std::vector<c10::IValue> CompiledProgram::rank_slots(int rank) const {
  std::vector<c10::IValue> slots(slot_count);
  slots[slot_of_.at("rank")] = static_cast<std::int64_t>(rank);
  slots[slot_of_.at("world_size")] = static_cast<std::int64_t>(program.world_size);
  for (const Group& group : program.groups) {
    const auto [list, place] = group.place_of(rank);
    slots[slot_of_.at(group.name + "_rank")] = static_cast<std::int64_t>(place);
    slots[slot_of_.at(group.name + "_size")] =
        static_cast<std::int64_t>(group.partition[list].size());
  }
  return slots;
}

}  // namespace distgrad
