#include "rank/stated_truth.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <string>
#include <variant>

#include "rank/compiled_program.h"
#include "rank/input_values.h"

namespace distgrad {
namespace {

using Values = std::map<std::string, c10::IValue>;

at::Tensor evaluate_single(const Program& program, const Expression& e, const Scope& scope,
                           const Values& values) {
  try {
    const auto code = compile_expression(e.text, scope, DType::kFloat64);
    std::vector<c10::IValue> arguments;
    for (const std::string& name : code->names()) {
      const auto found = values.find(name);
      arguments.push_back(found != values.end() ? found->second
                                                : c10::IValue(value_of_name(program, name, 0)));
    }
    return code->evaluate(std::move(arguments));
  } catch (const InvalidExpression& error) {
    throw InvalidAt(e.pointer, error.what(), error.caret());
  }
}

// Returns the rank's truth for a local input, else the whole; in float64.
at::Tensor value_of(const Program& program, const Program::Truth& truth,
                    const std::vector<Leaf>& leaves, bool local, int rank) {
  if (const auto* one = std::get_if<Array>(&truth.value)) return tensor_of(*one);
  if (const auto* by_rank = std::get_if<std::vector<Array>>(&truth.value))
    return tensor_of(by_rank->at(rank));
  Scope scope = local ? rank_scope(program) : size_scope(program);
  Values values;
  for (const Leaf& l : leaves) {
    if (l.input->is_local() && !local) continue;  // it has no value but by rank
    scope[l.input->name] = NameType::kTensor;
    values[l.input->name] = (l.input->is_local() ? l.leaves[rank] : l.leaves[0]).detach();
  }
  const Expression& e = std::get<Expression>(truth.value);
  return evaluate_alone(program, e, scope, rank, DType::kFloat64, values).detach().to(at::kDouble);
}

// Expands a closed form that is one number to the whole tensor.
at::Tensor as_gradient(const Program::Truth& truth, const at::Tensor& value, const Shape& shape) {
  if (value.sizes() == at::IntArrayRef(shape)) return value;
  if (value.numel() == 1 && std::holds_alternative<Expression>(truth.value))
    return value.expand(shape);
  throw InvalidAt(truth.pointer, "the truth has shape " + c10::str(value.sizes()) + ", the input " +
                                     c10::str(at::IntArrayRef(shape)));
}

}  // namespace

SingleDeviceForward run_single_device(const Program& program) {
  SingleDeviceForward single;
  Scope scope = size_scope(program);
  Values values;
  for (const Input& input : program.inputs) {
    Leaf leaf = make_leaf(program, input, false);
    scope[input.name] = input.is_local() ? NameType::kTensorList : NameType::kTensor;
    if (input.is_local()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& x : leaf.leaves) list.push_back(x);
      values[input.name] = list;
    } else {
      values[input.name] = leaf.leaves[0];
    }
    single.leaves.push_back(std::move(leaf));
  }
  for (const Step& step : program.single_device->steps) {
    values[step.name] = evaluate_single(program, std::get<Expression>(step.what), scope, values);
    scope[step.name] = NameType::kTensor;
  }
  const at::Tensor loss = evaluate_single(program, program.single_device->loss, scope, values);
  if (loss.numel() != 1)
    throw InvalidAt(program.single_device->loss.pointer,
                    "the loss has " + std::to_string(loss.numel()) + " elements; it must have one");
  single.loss = loss.reshape({}).to(at::kDouble);
  return single;
}

std::optional<Gradient> stated_gradient(const Program& program, const Program::Truth& truth,
                                        const std::vector<Leaf>& leaves) {
  const auto leaf = std::find_if(leaves.begin(), leaves.end(),
                                 [&](const Leaf& l) { return l.input->name == truth.input; });
  if (leaf == leaves.end()) return {};
  Gradient g;
  g.input = truth.input;
  const bool local = leaf->input->is_local();
  const int parts = local ? program.world_size : 1;
  for (int r = 0; r < parts; ++r)
    g.parts.emplace_back(array_of(as_gradient(truth, value_of(program, truth, leaves, local, r),
                                              leaf->leaves[r].sizes().vec())));
  return g;
}

}  // namespace distgrad
