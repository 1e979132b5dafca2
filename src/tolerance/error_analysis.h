// Running error analysis: while one is alive, every ATen operator that this thread runs on float64
// tensors (forward and, through autograd, backward) also computes, for each element, a bound of how
// far the same element can lie off when the program is run in the case's dtype with every reduction
// in any admissible order. A bound of 0 means: the same bits in any order. docs/tolerance.md
// derives it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <string>
#include <vector>

#include "model/dtype.h"

namespace distgrad {

class ErrorAnalysis {
 public:
  // At most one at a time in a process. `on_gpu`: the run's functions are CUDA's, which are less
  // accurate.
  explicit ErrorAnalysis(DType dtype, bool on_gpu = false);
  ~ErrorAnalysis();
  ErrorAnalysis(const ErrorAnalysis&) = delete;
  ErrorAnalysis& operator=(const ErrorAnalysis&) = delete;

  // Absolute bound by element, float64, the tensor's shape; zeros for tensors never seen (leaves
  // are exact: their values were converted to the dtype before).
  at::Tensor bound_of(const at::Tensor&) const;

  // The tensor's values may lie off by `extra` more (e.g. a weight 1/3 that the dtype must round).
  void add_bound(const at::Tensor& tensor, const at::Tensor& extra);
  // A line on where the largest bound of the tensor comes from, for --verbose: "bound 3.6e-07 = 5
  // roundings of float32 (u = 6.0e-08) on terms up to 1.2", or "exact: the same bits in any order".
  std::string describe(const at::Tensor&) const;

  // The bound of rounding these float64 values once to the dtype: 0 where representable. In float64
  // a value such as 1/3, which is the result of a rounding, counts one.
  at::Tensor rounding_of(const at::Tensor& values) const;

  // Backward in the run may carry values `scale` times as large, to be divided at the end (the mean
  // of a sync): where they then overflow the dtype there is no bound.
  void set_backward_scale(double scale);

  // Named in messages until the next call, e.g. "step y".
  void set_place(std::string place);

  // Of all operators' results so far: what the analysis took is in proportion to it.
  std::int64_t elements() const;

  // Branches (max, min, relu, where, comparison, abs, clamp, sort) whose operands are not exact and
  // lie within their bounds of each other, a line each with the place.
  const std::vector<std::string>& undecided() const;

  // Operators without a rule met so far (their bound is an estimate by perturbation); tests keep
  // this empty.
  const std::vector<std::string>& unknown_operators() const;

  // While one is alive, the analysis sees nothing of what this thread runs.
  class Pause {
   public:
    Pause();

   private:
    c10::impl::ExcludeDispatchKeyGuard outside_;
  };

  class State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace distgrad
