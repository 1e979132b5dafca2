#include "rank/rank_call.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <unordered_set>

namespace distgrad {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<at::Tensor> by_rank(Connection& group, const CollectiveCall& spec,
                                const at::Tensor& x) {
  const CollectiveTraits& t = traits(spec.kind);
  // If a call is local, nothing else makes the ranks' shapes agree.
  const bool may_differ =
      t.takes_pairs || t.takes_splits || (t.takes_dim && spec.dim) || !t.communicates;
  return may_differ ? group.all_gather_uneven(x) : group.all_gather(x);
}

struct RankCall : torch::autograd::Function<RankCall> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& operand,
                            const at::Tensor& /*anchor*/, const std::shared_ptr<CallSite>& site,
                            const std::shared_ptr<SavedForBackward>& saved) {
    saved->operand = operand.detach();
    const at::Tensor output =
        collective(site->call.spec->kind).forward(site->call, *site->connection, operand, *saved);
    saved->output = output.detach();
    if (!site->keeps_values) {
      saved->operand =
          at::empty({}, operand.options().requires_grad(false)).expand(operand.sizes());
      saved->output.reset();
    }
    context->set_materialize_grads(true);
    context->saved_data["keeper"] =
        c10::IValue::make_capsule(c10::make_intrusive<Keeper>(site, saved));
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    const auto keeper =
        c10::static_intrusive_pointer_cast<Keeper>(context->saved_data["keeper"].toCapsule());
    const CallSite& site = *keeper->site;
    if (site.enter_backward) site.enter_backward();
    if (site.watch) site.watch->arrives(cotangents[0]);
    const at::Tensor gradient = site.backward(site, *keeper->saved, cotangents[0]);
    if (site.watch) {
      site.watch->gives(gradient);
      site.watch->notice_writes();
    }
    return {gradient, lent(site, gradient), at::Tensor(), at::Tensor()};
  }

  // Returns the gradient for a loan, in place of the anchor's, which has none.
  static at::Tensor lent(const CallSite& site, const at::Tensor& gradient) {
    if (!site.lends || !gradient.defined()) return {};
    const at::Tensor loan = gradient.reshape(site.lends->shape).clone();
    if (site.lends->watch) site.lends->watch->gives(loan);
    return loan;
  }

  struct Keeper : torch::CustomClassHolder {
    Keeper(std::shared_ptr<CallSite> s, std::shared_ptr<SavedForBackward> k)
        : site(std::move(s)), saved(std::move(k)) {}
    std::shared_ptr<CallSite> site;
    std::shared_ptr<SavedForBackward> saved;
  };
};

struct Anchor : torch::autograd::Function<Anchor> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& loss, at::TensorList also) {
    context->saved_data["count"] = static_cast<std::int64_t>(also.size());
    variable_list shapes;
    for (const at::Tensor& x : also) shapes.push_back(x.detach());
    context->save_for_backward(shapes);
    return loss.clone();
  }

  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    variable_list result{cotangents[0]};
    for (const at::Tensor& x : context->get_saved_variables()) result.push_back(at::zeros_like(x));
    return result;
  }
};

using torch::autograd::Node;

// Returns all nodes that backward from x reaches.
std::unordered_set<const Node*> nodes_behind(const at::Tensor& x) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> waiting = {x.grad_fn().get()};
  while (!waiting.empty()) {
    const Node* node = waiting.back();
    waiting.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    for (const torch::autograd::Edge& edge : node->next_edges())
      waiting.push_back(edge.function.get());
  }
  return seen;
}

// Returns those `values` that the loss's backward does not reach. Adding zeros to the others'
// cotangents would change no number, but their strides, on which code under test may stumble.
variable_list left_out(const at::Tensor& loss, const std::vector<at::Tensor>& values) {
  const auto seen = nodes_behind(loss);
  variable_list left;
  for (const at::Tensor& value : values)
    if (!seen.contains(value.grad_fn().get())) left.push_back(value);
  return left;
}

}  // namespace

// Other calls use only the shape of `saved.operand`.
bool wants_values(const CollectiveCall& call) {
  const bool reduces = traits(call.kind).takes_op;
  return reduces &&
         (call.op == ReduceOp::kProduct || call.op == ReduceOp::kMin || call.op == ReduceOp::kMax);
}

at::Tensor native_backward(const CallSite& site, const SavedForBackward& saved,
                           const at::Tensor& cotangent) {
  return collective(site.call.spec->kind).backward(site.call, *site.connection, saved, cotangent);
}

at::Tensor partial_sums_backward(const CallSite& site, const SavedForBackward&,
                                 const at::Tensor& cotangent) {
  return site.connection->reduce(cotangent, ReduceOp::kSum, site.call.spec->root);
}

Backward joint_backward(JointFunction function) {
  return [function = std::move(function)](const CallSite& site, const SavedForBackward& saved,
                                          const at::Tensor& cotangent) {
    const CollectiveCall& spec = *site.call.spec;
    JointValues values;
    values.cotangents = by_rank(*site.connection, spec, cotangent);
    values.operands = by_rank(*site.connection, spec, saved.operand);
    values.outputs = by_rank(*site.connection, spec, saved.output);
    return function(site.call, values)[site.connection->rank()];
  };
}

Backward rule_backward(const Rule& rule) {
  if (rule.name != "raises" && rule.name != "none") return joint_backward(rule.evaluate);
  // No rank needs the others' values for these.
  return [&rule](const CallSite& site, const SavedForBackward&, const at::Tensor&) {
    if (rule.name == "raises") rule.evaluate(site.call, {});
    return at::Tensor();
  };
}

at::Tensor call_on_rank(const std::shared_ptr<CallSite>& site, const at::Tensor& operand,
                        const at::Tensor& anchor) {
  return RankCall::apply(operand, anchor, site, std::make_shared<SavedForBackward>());
}

void lend_gradient(CallSite& lender, const at::Tensor& output, CallSite& borrower,
                   const at::Tensor& operand) {
  borrower.backward = [](const CallSite&, const SavedForBackward&, const at::Tensor&) {
    return at::Tensor();
  };
  if (!operand.requires_grad() || !output.grad_fn()) return;
  TORCH_CHECK(!lender.lends, "two calls share the buffer of a third");
  TORCH_CHECK(!nodes_behind(operand).contains(output.grad_fn().get()),
              "the operand comes after the call whose buffer it shares");
  lender.lends = CallSite::Loan{operand.sizes().vec(), borrower.watch};
  // Replaces the anchor.
  output.grad_fn()->next_edges()[1] = torch::autograd::impl::gradient_edge(operand);
}

at::Tensor anchored(const at::Tensor& loss, const std::vector<at::Tensor>& also) {
  const variable_list left = left_out(loss, also);
  // Only members of a TensorList are taken for inputs.
  return left.empty() ? loss : Anchor::apply(loss, at::TensorList(left));
}

at::Tensor squared_gradient_norm(const at::Tensor& loss, const std::vector<at::Tensor>& reached,
                                 const std::vector<at::Tensor>& leaves) {
  at::Tensor norm = at::zeros({}, loss.options().requires_grad(false));
  const at::Tensor end = anchored(loss, reached);
  if (!end.requires_grad()) return norm;
  const auto gradients =
      torch::autograd::grad({end}, leaves, {at::ones_like(end.detach())}, /*retain_graph=*/true,
                            /*create_graph=*/true, /*allow_unused=*/true);
  for (const at::Tensor& g : gradients)
    if (g.defined()) norm = norm + (g * g).sum();
  return norm;
}

}  // namespace distgrad
