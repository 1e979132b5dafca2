// Runs backward through the simulation's graph, from weighted losses.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "rank/leaf.h"
#include "tolerance/error_analysis.h"

namespace distgrad {

// Holds the float64 scalars that the ranks compute, and the weight of each.
struct WeightedLosses {
  const std::vector<at::Tensor>& losses;
  const std::vector<double>& weights;
  ErrorAnalysis* analysis = nullptr;  // learns that the weights are rounded; may be null
};

// Returns ∂(Σ w_r l_r)/∂wanted, undefined where there is no path. Leaves out losses of weight 0,
// whose derivative may be infinite.
std::vector<at::Tensor> known_gradients(const WeightedLosses&,
                                        const std::vector<at::Tensor>& wanted, bool keep_graph);

// Returns the same, with zeros where there is no path.
std::vector<at::Tensor> gradients(const WeightedLosses&, const std::vector<at::Tensor>& wanted,
                                  bool keep_graph);
std::vector<at::Tensor> with_zeros(std::vector<at::Tensor> gradients,
                                   const std::vector<at::Tensor>& wanted);

// Returns Σ ‖∂(Σ_r l_r)/∂x‖² over each rank's inputs x, as part of the graph. Indexed by rank.
// Throws InvalidAt.
std::vector<at::Tensor> squared_gradient_norms(const std::vector<Leaf>&,
                                               const std::vector<at::Tensor>& losses);

}  // namespace distgrad
