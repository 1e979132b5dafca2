#include "rank/rule_node.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace distgrad {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RuleNode : torch::autograd::Function<RuleNode> {
  static variable_list forward(AutogradContext* context, at::TensorList operands, Call call,
                               const Rule* rule) {
    variable_list inputs, outputs;
    for (const at::Tensor& x : operands) inputs.push_back(x.detach());
    // Clones, as autograd would take an output that is an input for an in-place change.
    for (const at::Tensor& y : collective(call.spec->kind).simulate(call, inputs))
      outputs.push_back(y.clone());
    context->set_materialize_grads(true);
    context->saved_data["spec"] = reinterpret_cast<std::int64_t>(call.spec);
    context->saved_data["size"] = static_cast<std::int64_t>(call.size);
    context->saved_data["rule"] = reinterpret_cast<std::int64_t>(rule);
    variable_list saved = inputs;
    for (const at::Tensor& y : outputs) saved.push_back(y.detach());
    context->save_for_backward(saved);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    const auto* spec = reinterpret_cast<const CollectiveCall*>(context->saved_data["spec"].toInt());
    const auto* rule = reinterpret_cast<const Rule*>(context->saved_data["rule"].toInt());
    const Call call{spec, static_cast<int>(context->saved_data["size"].toInt())};
    const variable_list saved = context->get_saved_variables();
    JointValues values;
    values.operands.assign(saved.begin(), saved.begin() + call.size);
    values.outputs.assign(saved.begin() + call.size, saved.end());
    values.cotangents = cotangents;
    variable_list result = rule->evaluate(call, values);
    result.resize(call.size + 2);  // the call and the rule have no gradient
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> call_with_rule(const Call& call, const Rule& rule,
                                       const std::vector<at::Tensor>& operands) {
  // Only members of a TensorList are taken for inputs.
  return RuleNode::apply(at::TensorList(operands), call, &rule);
}

}  // namespace distgrad
