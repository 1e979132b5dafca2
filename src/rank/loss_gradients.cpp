#include "rank/loss_gradients.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "rank/compiled_program.h"

namespace distgrad {

using Tensors = std::vector<at::Tensor>;

Tensors known_gradients(const WeightedLosses& from, const Tensors& wanted, bool keep_graph) {
  Tensors counted;
  std::vector<double> cotangents;
  for (std::size_t r = 0; r < from.losses.size(); ++r) {
    if (from.weights[r] == 0 || !from.losses[r].requires_grad()) continue;
    counted.push_back(from.losses[r]);
    cotangents.push_back(from.weights[r]);
  }
  if (counted.empty() || wanted.empty()) return Tensors(wanted.size());
  const at::Tensor start = at::tensor(cotangents, at::kDouble);
  if (from.analysis) from.analysis->add_bound(start, from.analysis->rounding_of(start));
  return torch::autograd::grad({at::stack(counted)}, wanted, {start}, keep_graph,
                               /*create_graph=*/false,
                               /*allow_unused=*/true);
}

Tensors gradients(const WeightedLosses& from, const Tensors& wanted, bool keep_graph) {
  return with_zeros(known_gradients(from, wanted, keep_graph), wanted);
}

Tensors with_zeros(Tensors grads, const Tensors& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (!grads[i].defined()) grads[i] = at::zeros_like(wanted[i].detach());
  return grads;
}

Tensors squared_gradient_norms(const std::vector<Leaf>& leaves, const Tensors& losses) {
  for (const Leaf& leaf : leaves)
    if (leaf.input->requires_grad && !leaf.input->is_local())
      throw InvalidAt(leaf.input->pointer,
                      "squared_gradient_norm needs inputs whose layout is \"local\" (or without "
                      "gradient): of another one no rank has the gradient to take the norm of");
  Tensors counted, norms(losses.size(), at::zeros({}, at::kDouble));
  const Tensors wanted = differentiable(leaves);
  for (const at::Tensor& loss : losses)
    if (loss.requires_grad()) counted.push_back(loss);
  if (wanted.empty() || counted.empty()) return norms;
  const Tensors grads = torch::autograd::grad(
      {at::stack(counted)}, wanted, {at::ones({std::ssize(counted)}, at::kDouble)},
      /*retain_graph=*/true, /*create_graph=*/true, /*allow_unused=*/true);
  for (std::size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined())
      norms[i % norms.size()] = norms[i % norms.size()] + (grads[i] * grads[i]).sum();
  return norms;
}

}  // namespace distgrad
