// Does running error analysis. While it lives, every ATen operator that this thread runs on float64
// tensors (forward and, through autograd, backward) also computes, for each element, a bound. It
// says how far the same element can lie off when the program runs in the case's dtype with every
// reduction in any admissible order. A bound of 0 means the same bits in any order.
// docs/tolerance.md derives it.
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
  // Only one may live in a process at a time. `on_gpu` says that the run's functions are CUDA's,
  // which are less accurate.
  explicit ErrorAnalysis(DType dtype, bool on_gpu = false);
  ~ErrorAnalysis();
  ErrorAnalysis(const ErrorAnalysis&) = delete;
  ErrorAnalysis& operator=(const ErrorAnalysis&) = delete;

  // Returns the absolute bound by element, in float64 and the tensor's shape. Tensors never seen
  // have zeros (leaves are exact, since their values were converted to the dtype before).
  at::Tensor bound_of(const at::Tensor&) const;

  // Lets the tensor's values lie off by `extra` more (e.g. a weight 1/3 that the dtype must round).
  void add_bound(const at::Tensor& tensor, const at::Tensor& extra);
  // Says in a line, for --verbose, where the tensor's largest bound comes from: "bound 3.6e-07 = 5
  // roundings of float32 (u = 6.0e-08) on terms up to 1.2", or "exact: the same bits in any order".
  std::string describe(const at::Tensor&) const;

  // Returns the bound of rounding these float64 values once to the dtype: 0 if representable. In
  // float64 a value such as 1/3, itself the result of a rounding, counts one.
  at::Tensor rounding_of(const at::Tensor& values) const;

  // Says that the run's backward may carry values `scale` times as large, to be divided at the end
  // (the mean of a sync). Where they then overflow the dtype there is no bound.
  void set_backward_scale(double scale);

  // Sets the place that messages name until the next call, e.g. "step y".
  void set_place(std::string place);

  // Returns the number of elements of all operators' results so far, to which the analysis' time is
  // proportional.
  std::int64_t elements() const;

  // Returns branches (max, min, relu, where, comparison, abs, clamp, sort) whose operands are
  // inexact and lie within their bounds of each other, a line each with the place.
  const std::vector<std::string>& undecided() const;

  // Returns operators without a rule met so far, whose bound is an estimate by perturbation. Tests
  // keep this empty.
  const std::vector<std::string>& unknown_operators() const;

  // Hides, while it lives, what this thread runs from the analysis.
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
