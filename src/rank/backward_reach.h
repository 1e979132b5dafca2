// Whether a simulation's backward has anything to do with its collectives.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace distgrad {

// From what collectives give while the graph is made, and of the backward passes, it knows
// whether any cotangent other than 0 reached one of them. Outlives the graph.
class BackwardReach {
 public:
  // The outputs of one collective call, by rank.
  void watch(const std::vector<at::Tensor>& outputs);
  // Only what arrives between these counts.
  void begin() { counts_ = true; }
  void end() { counts_ = false; }

  // There are collectives, and no rule of any of their backwards has changed a gradient.
  bool is_nowhere() const { return watches_ && !is_somewhere_; }

 private:
  bool watches_ = false, counts_ = false, is_somewhere_ = false;
};

}  // namespace distgrad
