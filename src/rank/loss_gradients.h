// Backward through the simulation's graph, from weighted losses.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "rank/leaf.h"
#include "tolerance/error_analysis.h"

namespace distgrad {

// The float64 scalars that the ranks compute, and how much each counts.
struct WeightedLosses {
  const std::vector<at::Tensor>& losses;
  const std::vector<double>& weights;
  ErrorAnalysis* analysis = nullptr;  // is told that the weights are rounded; may be null
};

// ∂(Σ w_r l_r)/∂wanted, undefined where there is no path. Losses of weight 0 take no part: their
// derivative may be infinite.
std::vector<at::Tensor> known_gradients(const WeightedLosses&,
                                        const std::vector<at::Tensor>& wanted, bool keep_graph);

// The same, zeros where there is no path.
std::vector<at::Tensor> gradients(const WeightedLosses&, const std::vector<at::Tensor>& wanted,
                                  bool keep_graph);
std::vector<at::Tensor> with_zeros(std::vector<at::Tensor> gradients,
                                   const std::vector<at::Tensor>& wanted);

// By rank, Σ ‖∂(Σ_r l_r)/∂x‖² over the rank's inputs x, as part of the graph. Throws InvalidAt.
std::vector<at::Tensor> squared_gradient_norms(const std::vector<Leaf>&,
                                               const std::vector<at::Tensor>& losses);

}  // namespace distgrad
