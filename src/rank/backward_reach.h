// Decides whether a simulation's backward has anything to do with its collectives.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace distgrad {

// Watches the outputs of collectives while the graph is made, and records whether any cotangent
// other than 0 reached one of them in a backward pass. Must outlive the graph.
class BackwardReach {
 public:
  // Takes the outputs of one collective call, indexed by rank.
  void watch(const std::vector<at::Tensor>& outputs);
  // Only cotangents that arrive between begin() and end() count.
  void begin() { counts_ = true; }
  void end() { counts_ = false; }

  // True if there are collectives and no rule for any of their backwards has changed a gradient.
  bool is_nowhere() const { return watches_ && !is_somewhere_; }

 private:
  bool watches_ = false, counts_ = false, is_somewhere_ = false;
};

}  // namespace distgrad
