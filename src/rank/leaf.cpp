#include "rank/leaf.h"

#include "rank/input_values.h"

namespace distgrad {

Leaf make_leaf(const Program& program, const Input& input, bool by_rank) {
  Leaf leaf;
  leaf.input = &input;
  // No leaf shares its memory: local_value() and full_value() make new tensors, and pieces are
  // views.
  const auto exact = [](const at::Tensor& x) {
    return x.scalar_type() == at::kDouble ? x : x.to(at::kDouble);
  };
  const auto own_piece = [&](const at::Tensor& x) {
    return exact(x.detach()).clone(at::MemoryFormat::Contiguous);
  };
  if (input.is_local()) {
    for (int r = 0; r < program.world_size; ++r)
      leaf.leaves.push_back(exact(local_value(program, input, r)));
  } else if (by_rank) {
    for (const at::Tensor& x : laid_out(program, input, full_value(program, input)))
      leaf.leaves.push_back(own_piece(x));
  } else {
    leaf.leaves.push_back(exact(full_value(program, input)));
  }
  if (input.requires_grad)
    for (at::Tensor& x : leaf.leaves) x.requires_grad_(true);
  leaf.by_rank = leaf.leaves.size() == 1 && !input.is_local() && !by_rank
                     ? laid_out(program, input, leaf.leaves[0])
                     : leaf.leaves;
  return leaf;
}

std::vector<at::Tensor> differentiable(const std::vector<Leaf>& leaves) {
  std::vector<at::Tensor> all;
  for (const Leaf& leaf : leaves)
    if (leaf.input->requires_grad) all.insert(all.end(), leaf.leaves.begin(), leaf.leaves.end());
  return all;
}

Gradient gradient_of(const Leaf& leaf, std::vector<at::Tensor>::const_iterator first) {
  Gradient g;
  g.input = leaf.input->name;
  for (std::size_t i = 0; i < leaf.leaves.size(); ++i, ++first)
    g.parts.emplace_back(array_of(*first));
  return g;
}

double number(const at::Tensor& scalar) { return *scalar.detach().const_data_ptr<double>(); }

}  // namespace distgrad
