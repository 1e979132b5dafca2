// Describes one collective call whose backward is asked for again and again, from cotangents that
// the driver chose (Drive). Ranks and the simulator both read the request through this.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/run_result.h"

namespace distgrad {

class DrivenCall {
 public:
  // The program and the drive must outlive this. Throws InvalidAt if the program is no such call.
  DrivenCall(const Program&, const Drive&);

  const Step& step() const { return program_.steps[0]; }
  const Input& operand() const { return operand_; }

  // Returns only the value, in the program's dtype; the strides say how it shall lie in memory.
  at::Tensor operand_on(int rank) const;
  std::vector<at::Tensor> cotangents_on(int rank) const;  // K of them

  Strides operand_strides(int rank) const { return of_rank(drive_.operand_strides, rank); }
  Strides cotangent_strides(int rank) const { return of_rank(drive_.cotangent_strides, rank); }

 private:
  static Strides of_rank(const std::vector<Strides>& by_rank, int rank) {
    return by_rank.empty() ? Strides() : by_rank.at(static_cast<std::size_t>(rank));
  }

  const Program& program_;
  const Drive& drive_;
  const Input& operand_;
  const Input& cotangents_;
};

// Returns what is right for a driven call. Throws InvalidAt and c10::Error, as other simulations
// do.
Simulation simulate_driven(const SimulateRequest&);

}  // namespace distgrad
